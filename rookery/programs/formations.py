"""Formations by name: from a configuration to a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rookery.core.errors import UserError, near_names
from rookery.programs.graph import Edge, Node, Program

if TYPE_CHECKING:
    from rookery.runs.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class FormationConfig:
    """Settings common to formations."""

    num_actors: int = 1
    """Actors, each with env.num_envs environments; each is a process under the local engine."""
    learner_threads: int = 1
    """Compute threads of the learner."""

    def __post_init__(self) -> None:
        for name in ("num_actors", "learner_threads"):
            if getattr(self, name) < 1:
                raise UserError(f"formation.{name}: must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class SyncConfig(FormationConfig):
    """One round at a time: all actors act, the learner learns, all get the new weights."""


def sync(config: RunConfig) -> Program:
    """Actors with their own copy of the policy; the learner waits for all, then all wait for it."""
    formation = config.formation_config
    nodes = [
        Node(
            name="actor",
            replicas=formation.num_actors,
            needs=frozenset({"experience", "params"}),
            about=f"{config.env.num_envs} environments each",
        ),
        Node(
            name="learner",
            serves=frozenset({"experience", "params"}),
            num_threads=formation.learner_threads,
            about=f"{config.algo}, {config.optimizer.name}",
        ),
    ]
    edges = [Edge("actor", "experience", "learner"), Edge("actor", "params", "learner")]
    if config.eval.episodes > 0:
        nodes.append(
            Node(
                name="evaluator",
                serves=frozenset({"evaluation"}),
                about=f"{config.eval.episodes} episodes of each saved policy",
            )
        )
        edges.append(Edge("learner", "evaluation", "evaluator"))
    return Program("sync", tuple(nodes), tuple(edges))


FORMATIONS: dict[str, tuple[Callable[[RunConfig], Program], type[FormationConfig]]] = {
    "sync": (sync, SyncConfig),
}


def formation_config_class(name: str) -> type[FormationConfig]:
    """The config dataclass of the formation called ``name``."""
    if name not in FORMATIONS:
        raise UserError(
            f"--formation: unknown '{name}'{near_names(name, FORMATIONS)} "
            f"(one of {', '.join(sorted(FORMATIONS))})"
        )
    return FORMATIONS[name][1]


def build_program(config: RunConfig) -> Program:
    """The program of the configured formation."""
    return FORMATIONS[config.formation][0](config)
