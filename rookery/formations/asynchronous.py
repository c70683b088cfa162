"""Formation ``async``: actors never wait for the learner. Rollouts queue up; it takes the oldest.

IMPALA (https://arxiv.org/abs/1802.01561): V-trace corrects for weights that were older.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rookery.core.errors import UserError
from rookery.formations.session_edges import with_session
from rookery.formations.settings import FormationConfig, Joined
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.memory import worker_holds
from rookery.programs.plan import Plan
from rookery.roles.build import build_actor, build_async_learner
from rookery.transport.queue import QueuePort
from rookery.transport.weights import WeightsPort


@dataclass(frozen=True, kw_only=True)
class AsyncConfig(FormationConfig):
    """Actors never wait for the learner: rollouts queue up, and it takes the oldest."""

    off_policy: ClassVar[bool] = True
    joined: ClassVar[Joined] = "more"

    slots_per_actor: int = 2
    """Rollouts of one actor that may wait; when all its slots are full, it waits."""
    batch_envs: int | None = None
    """Environments whose rollouts, of whichever actors, make one batch: a multiple of each actor's
    share of env.num_envs; null: as many as there are."""
    max_lag: int | None = None
    """Rollouts made by weights that are more than this many updates old are not learned from;
    null: all are."""
    learner_threads: int = 1
    """Compute threads of the learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("slots_per_actor", "learner_threads")
        if self.batch_envs is not None:
            self._check_positive("batch_envs")
        if self.max_lag is not None and self.max_lag < 0:
            raise UserError(
                f"formation.max_lag: must not be negative, got {self.max_lag}; 0 takes only what "
                "the newest weights made, null takes all"
            )

    def batch_columns(self, num_envs: int) -> int:
        """Those of ``batch_envs``, whole rollouts of one actor each."""
        share = max(num_envs // max(self.num_actors, 1), 1)
        if self.batch_envs is not None and self.batch_envs % share:
            raise UserError(
                f"formation.batch_envs: {self.batch_envs} cannot be made of rollouts of {share} "
                f"environments (env.num_envs {num_envs}, divided among {self.num_actors} actors); "
                f"give a multiple of {share}"
            )
        return self.batch_envs or num_envs

    @property
    def num_beside(self) -> int:
        """The learner."""
        return 1


class Async:
    """The formation."""

    Config = AsyncConfig

    @staticmethod
    def roles(plan: Plan) -> tuple[list[Node], list[Edge]]:
        """Actors that fill queues and take the newest weights; a learner that empties them."""
        config, formation = plan.config, plan.config.formation_config
        assert isinstance(formation, AsyncConfig)
        rollouts = QueuePort(
            plan.rollout(plan.envs_each),
            plan.rollout(formation.batch_columns(config.env.num_envs)),
            num_actors=plan.num_actors,
            num_envs=plan.envs_each,
            num_slots=formation.slots_per_actor,
            max_lag=formation.max_lag,
        )
        nodes = [
            Node(
                name="actor",
                build=build_actor,
                replicas=plan.num_actors,
                has_envs=True,
                leaves=True,
                about=f"{formation.slots_per_actor} slots",
            ),
            Node(
                name="learner",
                build=build_async_learner,
                num_threads=formation.learner_threads,
                computes=True,
                keeps_session=True,
                on_death="rewind",
                leaves=True,
                about=f"{config.algo}, {config.optimizer.name}",
                holds=worker_holds,
            ),
        ]
        edges = [
            Edge("actor", WeightsPort(plan.params), "learner"),
            Edge("actor", rollouts, "learner"),
        ]
        return nodes, edges

    @classmethod
    def program(cls, plan: Plan) -> Program:
        """These, and what every formation has."""
        return with_session(plan, "async", *cls.roles(plan))
