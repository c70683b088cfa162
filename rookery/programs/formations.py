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
    """Settings of a formation, and what every engine asks of it."""

    @property
    def num_processes(self) -> int:
        """Replicas of the role that acts."""
        raise NotImplementedError

    @property
    def actors_in_batch(self) -> int:
        """How many of them fill one batch."""
        raise NotImplementedError

    def _check_positive(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise UserError(f"formation.{name}: must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class SyncConfig(FormationConfig):
    """One round at a time: all actors act, the learner learns, all get the new weights."""

    num_actors: int = 1
    """Actors, each with env.num_envs environments; each is a process under the local engine."""
    learner_threads: int = 1
    """Compute threads of the learner."""

    def __post_init__(self) -> None:
        self._check_positive("num_actors", "learner_threads")

    @property
    def num_processes(self) -> int:
        """The actors."""
        return self.num_actors

    @property
    def actors_in_batch(self) -> int:
        """The learner waits for all."""
        return self.num_actors


@dataclass(frozen=True, kw_only=True)
class AllreduceConfig(FormationConfig):
    """Every worker acts and learns; all step with the mean of their gradients."""

    num_workers: int = 1
    """Workers, each with env.num_envs environments; each is a process under the local engine."""
    worker_threads: int = 1
    """Compute threads of each worker."""
    check_every: int = 100
    """Updates after which the workers see whether they still hold the same weights."""

    def __post_init__(self) -> None:
        self._check_positive("num_workers", "worker_threads", "check_every")

    @property
    def num_processes(self) -> int:
        """The workers."""
        return self.num_workers

    @property
    def actors_in_batch(self) -> int:
        """Each learns from its own."""
        return 1


def sync(config: RunConfig) -> Program:
    """Actors with their own copy of the policy; the learner waits for all, then all wait for it."""
    formation = config.formation_config
    assert isinstance(formation, SyncConfig)
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
    return _judged(config, "sync", nodes, edges, by="learner")


def allreduce(config: RunConfig) -> Program:
    """Workers that act and learn, and step together with the mean of their gradients."""
    formation = config.formation_config
    assert isinstance(formation, AllreduceConfig)
    worker = Node(
        name="worker",
        replicas=formation.num_workers,
        serves=frozenset({"gradients"}),
        needs=frozenset({"gradients"}),
        num_threads=formation.worker_threads,
        about=f"{config.env.num_envs} environments each, {config.algo}, {config.optimizer.name}",
    )
    edges = [Edge("worker", "gradients", "worker")]
    return _judged(config, "allreduce", [worker], edges, by="worker")


def _judged(
    config: RunConfig, name: str, nodes: list[Node], edges: list[Edge], *, by: str
) -> Program:
    """The program, with an evaluator unless it is switched off."""
    if config.eval.episodes > 0:
        about = f"{config.eval.episodes} episodes of each saved policy"
        evaluator = Node(name="evaluator", serves=frozenset({"evaluation"}), about=about)
        nodes, edges = [*nodes, evaluator], [*edges, Edge(by, "evaluation", "evaluator")]
    return Program(name, tuple(nodes), tuple(edges))


FORMATIONS: dict[str, tuple[Callable[[RunConfig], Program], type[FormationConfig]]] = {
    "allreduce": (allreduce, AllreduceConfig),
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
