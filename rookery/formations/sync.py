"""Formation ``sync``: one round at a time. All actors act, the learner learns, all get new weights.

A2C and PPO; the synchronous A2C of mpia2c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rookery.formations.session_edges import with_session
from rookery.formations.settings import FormationConfig, Joined
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.plan import Plan
from rookery.roles.build import build_actor, build_learner
from rookery.transport.blocks import BlockPort
from rookery.transport.weights import WeightsPort


@dataclass(frozen=True, kw_only=True)
class SyncConfig(FormationConfig):
    """One round at a time: all actors act, the learner learns, all get the new weights."""

    joined: ClassVar[Joined] = "some"

    learner_threads: int = 1
    """Compute threads of the learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("learner_threads")

    @property
    def num_beside(self) -> int:
        """The learner."""
        return 1


class Sync:
    """The formation."""

    Config = SyncConfig

    @staticmethod
    def roles(plan: Plan) -> tuple[list[Node], list[Edge]]:
        """Actors with their own copy of the policy; the learner waits for all, then all for it."""
        config, formation = plan.config, plan.config.formation_config
        assert isinstance(formation, SyncConfig)
        rollouts = BlockPort(
            plan.rollout,
            num_actors=plan.num_actors,
            num_envs=plan.envs_each,
            rounds=config.on_policy.rollouts_per_update,
        )
        nodes = [
            Node(
                name="actor",
                build=build_actor,
                replicas=plan.num_actors,
                has_envs=True,
                leaves=True,
            ),
            Node(
                name="learner",
                build=build_learner,
                num_threads=formation.learner_threads,
                computes=True,
                keeps_session=True,
                on_death="rewind",
                leaves=True,
                about=f"{config.algo}, {config.optimizer.name}",
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
        return with_session(plan, "sync", *cls.roles(plan))
