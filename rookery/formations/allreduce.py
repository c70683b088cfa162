"""Formation ``allreduce``: every worker acts and learns; all step with the mean of their gradients.

Data parallelism: the weights are the same everywhere, after every step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rookery.formations.session_edges import with_session
from rookery.formations.settings import FormationConfig, Joined
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.memory import worker_holds
from rookery.programs.plan import Plan
from rookery.roles.build import build_worker
from rookery.transport.group_port import TIMEOUT_SECS, GroupPort


@dataclass(frozen=True, kw_only=True)
class AllreduceConfig(FormationConfig):
    """Every worker acts and learns; all step with the mean of their gradients."""

    acting_role: ClassVar[str] = "worker"
    alone_in_thread: ClassVar[bool] = True
    joined: ClassVar[Joined] = "some"

    worker_threads: int = 1
    """Compute threads of each worker."""
    check_every: int = 100
    """Updates after which the workers see whether they still hold the same weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("worker_threads", "check_every")

    def batch_columns(self, num_envs: int) -> int:
        """Each learns from its own."""
        return max(num_envs // self.num_actors, 1)


class Allreduce:
    """The formation."""

    Config = AllreduceConfig

    @staticmethod
    def program(plan: Plan) -> Program:
        """Workers that act and learn, and step together with the mean of their gradients."""
        config, formation = plan.config, plan.config.formation_config
        assert isinstance(formation, AllreduceConfig)
        # Workers of other hosts may come late, and come back.
        patience = math.inf if config.num_places else TIMEOUT_SECS
        gradients = GroupPort("worker", plan.num_actors, _largest_bytes(plan), patience)
        worker = Node(
            name="worker",
            build=partial(build_worker, check_every=formation.check_every),
            replicas=plan.num_actors,
            num_threads=formation.worker_threads,
            computes=True,
            has_envs=True,
            keeps_session=True,
            on_death="rewind",
            leaves=True,
            about=f"{config.algo}, {config.optimizer.name}",
            holds=worker_holds,
        )
        return with_session(plan, "allreduce", [worker], [Edge("worker", gradients, "worker")])


def _largest_bytes(plan: Plan) -> int:
    """Of what workers add up or gather: a gradient and its weight, episodes, statistics."""
    columns = plan.envs_each * plan.config.on_policy.rollouts_per_update
    steps = plan.config.algo_config.rollout_steps * columns
    episodes = steps * (2 + len(plan.info_keys)) * 8
    moments = max((math.prod(shape) for shape in plan.moments.values()), default=0) + 1
    return max((plan.num_params + 1) * 4, episodes, moments * 8, 4096)
