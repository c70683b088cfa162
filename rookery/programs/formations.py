"""Formations by name: from a configuration to a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rookery.algos.algorithm import block_name
from rookery.algos.dqn import DQNConfig
from rookery.core.errors import UserError, naming, near_names
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

    @property
    def off_policy(self) -> bool:
        """Whether rollouts may be older than the weights that learn from them."""
        return False

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


@dataclass(frozen=True, kw_only=True)
class HogwildConfig(FormationConfig):
    """Workers around one set of weights in shared memory; none waits for another."""

    num_workers: int = 1
    """Workers, each with env.num_envs environments and a process of its own."""
    worker_threads: int = 1
    """Compute threads of each worker."""
    shared_statistics: bool = True
    """One set of optimizer statistics for all workers; false: each has its own."""
    devices: tuple[str, ...] = ()
    """Worker i computes on device i modulo their number, such as [cuda:0, cuda:1] (A3G); the shared
    weights stay in main memory. Empty: all on --device."""

    def __post_init__(self) -> None:
        self._check_positive("num_workers", "worker_threads")

    @property
    def num_processes(self) -> int:
        """The workers."""
        return self.num_workers

    @property
    def actors_in_batch(self) -> int:
        """Each learns from its own."""
        return 1


@dataclass(frozen=True, kw_only=True)
class AsyncConfig(FormationConfig):
    """Actors never wait for the learner: rollouts queue up, and it takes the oldest."""

    num_actors: int = 1
    """Actors, each with env.num_envs environments; each is a process under the local engine."""
    slots_per_actor: int = 2
    """Rollouts of one actor that may wait; when all its slots are full, it waits."""
    rollouts_per_batch: int | None = None
    """Rollouts, of whichever actors, that make one batch; null: as many as there are actors."""
    max_lag: int | None = None
    """Rollouts made by weights that are more than this many updates old are not learned from;
    null: all are."""
    learner_threads: int = 1
    """Compute threads of the learner."""
    threads: bool = False
    """Actors are threads of the learner's process (engine inline)."""

    def __post_init__(self) -> None:
        self._check_positive("num_actors", "slots_per_actor", "learner_threads")
        if self.rollouts_per_batch is not None:
            self._check_positive("rollouts_per_batch")
        if self.max_lag is not None and self.max_lag < 0:
            raise UserError(
                f"formation.max_lag: must not be negative, got {self.max_lag}; 0 takes only what "
                "the newest weights made, null takes all"
            )

    @property
    def num_processes(self) -> int:
        """The actors."""
        return self.num_actors

    @property
    def actors_in_batch(self) -> int:
        """Rollouts of a batch, each of one actor."""
        return self.rollouts_per_batch or self.num_actors

    @property
    def off_policy(self) -> bool:
        """The learner goes on while rollouts are made and wait."""
        return True


BATCHES_READY = 2
"""Batches that replay keeps ready while the learner learns from another."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(FormationConfig):
    """Actors fill a replay table, from which the learner takes what it learns from."""

    num_actors: int = 1
    """Actors, each with env.num_envs environments; each is a process under the local engine."""
    num_learners: int = 1
    """Learners around one set of weights; more than one needs the local engine."""
    lockstep: bool = True
    """Learners divide each batch and step with the mean of their gradients; false: each learns from
    batches of its own and steps the weights without waiting for the others."""
    learner_threads: int = 1
    """Compute threads of each learner."""
    save_replay: bool = True
    """Checkpoints hold the replay too; false: a resumed run fills it anew before it learns on."""

    def __post_init__(self) -> None:
        self._check_positive("num_actors", "num_learners", "learner_threads")

    @property
    def num_processes(self) -> int:
        """The actors."""
        return self.num_actors

    @property
    def actors_in_batch(self) -> int:
        """A batch may hold steps of all."""
        return self.num_actors

    @property
    def off_policy(self) -> bool:
        """What is replayed was done by older weights."""
        return True

    @property
    def num_slots(self) -> int:
        """Batches for which processes share memory: learned from, and ready beside that."""
        if self.num_learners > 1 and not self.lockstep:
            return self.num_learners * 2
        # Learners that meet hand a batch back as they take the next.
        return 1 + (self.num_learners > 1) + BATCHES_READY


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


def async_(config: RunConfig) -> Program:
    """Actors that fill queues and take the newest weights; a learner that empties the queues."""
    formation = config.formation_config
    assert isinstance(formation, AsyncConfig)
    nodes = [
        Node(
            name="actor",
            replicas=formation.num_actors,
            needs=frozenset({"queue", "params"}),
            about=f"{config.env.num_envs} environments each, {formation.slots_per_actor} slots",
        ),
        Node(
            name="learner",
            serves=frozenset({"queue", "params"}),
            num_threads=formation.learner_threads,
            about=f"{config.algo}, {config.optimizer.name}",
        ),
    ]
    edges = [Edge("actor", "queue", "learner"), Edge("actor", "params", "learner")]
    return _judged(config, "async", nodes, edges, by="learner")


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


def hogwild(config: RunConfig) -> Program:
    """Workers that act, learn and write to the same weights; a keeper that watches over them."""
    _refuse_average(config)
    formation = config.formation_config
    assert isinstance(formation, HogwildConfig)
    worker = Node(
        name="worker",
        replicas=formation.num_workers,
        serves=frozenset({"weights"}),
        needs=frozenset({"weights"}),
        num_threads=formation.worker_threads,
        about=f"{config.env.num_envs} environments each, {config.algo}, {config.optimizer.name}",
    )
    keeper = Node(
        name="keeper",
        needs=frozenset({"weights"}),
        busy=False,
        about="counts, logs and saves what the workers share",
    )
    edges = [Edge("worker", "weights", "worker"), Edge("keeper", "weights", "worker")]
    return _judged(config, "hogwild", [worker, keeper], edges, by="keeper")


def replay(config: RunConfig) -> Program:
    """Actors that put steps, replay that holds them, a learner that samples sequences of them."""
    _refuse_average(config)
    formation, algo = config.formation_config, config.algo_config
    assert isinstance(formation, ReplayConfig)
    assert isinstance(algo, DQNConfig)
    nodes = [
        Node(
            name="actor",
            replicas=formation.num_actors,
            needs=frozenset({"steps", "params"}),
            about=f"{config.env.num_envs} environments each",
        ),
        Node(
            name="replay",
            serves=frozenset({"steps", "sequences"}),
            about=f"the last {algo.capacity_steps:,} steps",
        ),
        Node(
            name="learner",
            replicas=formation.num_learners,
            serves=frozenset({"params", "gradients", "weights"}),
            needs=frozenset({"sequences"}),
            num_threads=formation.learner_threads,
            about=f"{config.algo}, {config.optimizer.name}",
        ),
    ]
    edges = [
        Edge("actor", "steps", "replay"),
        Edge("learner", "sequences", "replay"),
        Edge("actor", "params", "learner"),
    ]
    if formation.num_learners > 1:
        if formation.lockstep and algo.batch_size < formation.num_learners:
            raise UserError(
                f"formation.num_learners: {formation.num_learners} learners cannot divide "
                f"{algo.batch_size} sequences (algo.batch_size); have fewer"
            )
        if config.device != "cpu":
            raise UserError(
                f"formation.num_learners: {formation.num_learners} learners hold their weights "
                f"together in main memory, not on {config.device}; --learners 1, or --device cpu"
            )
        port = "gradients" if formation.lockstep else "weights"
        edges.append(Edge("learner", port, "learner"))
    return _judged(config, "replay", nodes, edges, by="learner")


def _refuse_average(config: RunConfig) -> None:
    if config.optimizer.average_updates:
        raise UserError(
            f"optimizer.average_updates: formation {config.formation} does not average weights; "
            "set it to 0, or choose sync, async or allreduce"
        )


def _judged(
    config: RunConfig, name: str, nodes: list[Node], edges: list[Edge], *, by: str
) -> Program:
    """The program, with an evaluator unless it is switched off."""
    if config.eval.episodes > 0:
        about = f"{config.eval.episodes} episodes of each saved policy"
        serves = frozenset({"evaluation"})
        evaluator = Node(name="evaluator", serves=serves, busy=False, about=about)
        nodes, edges = [*nodes, evaluator], [*edges, Edge(by, "evaluation", "evaluator")]
    return Program(name, tuple(nodes), tuple(edges))


FORMATIONS: dict[str, tuple[Callable[[RunConfig], Program], type[FormationConfig]]] = {
    "allreduce": (allreduce, AllreduceConfig),
    "async": (async_, AsyncConfig),
    "hogwild": (hogwild, HogwildConfig),
    "replay": (replay, ReplayConfig),
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
    with naming(algo=block_name(config.algo), formation=config.formation):
        return FORMATIONS[config.formation][0](config)
