"""Formation ``hogwild``: workers around one set of weights in shared memory; none waits.

A3C (https://arxiv.org/abs/1602.01783) and, with a device each, A3G; without locks as in Hogwild
(https://arxiv.org/abs/1106.5730).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rookery.formations.session_edges import with_session
from rookery.formations.settings import FormationConfig
from rookery.params.hogwild import SharedWeightsPort
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.memory import worker_holds
from rookery.programs.plan import Plan
from rookery.roles.build import build_hogwild_session, build_hogwild_worker
from rookery.transport.reports import ReportsPort


@dataclass(frozen=True, kw_only=True)
class HogwildConfig(FormationConfig):
    """Workers around one set of weights in shared memory; none waits for another."""

    acting_role: ClassVar[str] = "worker"
    alone_in_thread: ClassVar[bool] = True
    averages: ClassVar[bool] = False

    worker_threads: int = 1
    """Compute threads of each worker."""
    shared_statistics: bool = True
    """One set of optimizer statistics for all workers; false: each has its own."""
    devices: tuple[str, ...] = ()
    """Worker i computes on device i modulo their number, such as [cuda:0, cuda:1] (A3G); the shared
    weights stay in main memory. Empty: all on --device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("worker_threads")

    def batch_columns(self, num_envs: int) -> int:
        """Each learns from its own."""
        return max(num_envs // self.num_actors, 1)


class Hogwild:
    """The formation."""

    Config = HogwildConfig

    @staticmethod
    def program(plan: Plan) -> Program:
        """Workers that act, learn and write to the same weights; a session that watches them."""
        config, formation = plan.config, plan.config.formation_config
        assert isinstance(formation, HogwildConfig)
        for device in formation.devices:
            plan.device(device)
        weights = SharedWeightsPort(
            plan.num_actors,
            plan.num_params,
            config.optimizer,
            plan.moments,
            shared_statistics=formation.shared_statistics,
        )
        reports = ReportsPort(plan.num_actors, 2 + len(plan.info_keys))
        nodes = [
            Node(
                name="worker",
                build=partial(build_hogwild_worker, devices=formation.devices),
                replicas=plan.num_actors,
                num_threads=formation.worker_threads,
                computes=True,
                has_envs=True,
                leaves=True,
                about=f"{config.algo}, {config.optimizer.name}",
                holds=worker_holds,
            ),
            Node(
                name="session",
                build=build_hogwild_session,
                busy=False,
                keeps_session=True,
                on_death="rewind",
                about="counts, logs and saves what the workers share",
            ),
        ]
        edges = [Edge("worker", weights, "session"), Edge("worker", reports, "session")]
        return with_session(plan, "hogwild", nodes, edges)
