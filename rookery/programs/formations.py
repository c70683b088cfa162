"""Formations by name: from a configuration to a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rookery.algos.algorithm import block_name
from rookery.algos.dqn import DQNConfig
from rookery.core.errors import UserError, naming
from rookery.formations.allreduce import AllreduceConfig
from rookery.formations.asynchronous import AsyncConfig
from rookery.formations.hogwild import HogwildConfig
from rookery.formations.replay import ReplayConfig
from rookery.formations.settings import FormationConfig
from rookery.formations.sync import SyncConfig
from rookery.programs.graph import Edge, Node, Program

if TYPE_CHECKING:
    from rookery.runs.config import RunConfig


def sync(config: RunConfig) -> Program:
    """Actors with their own copy of the policy; the learner waits for all, then all wait for it."""
    formation = config.formation_config
    assert isinstance(formation, SyncConfig)
    nodes = [
        Node(
            name="actor",
            replicas=formation.num_actors,
            needs=frozenset({"experience", "params"}),
            about=f"{_share(config)} environments each",
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
            about=f"{_share(config)} environments each, {formation.slots_per_actor} slots",
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
        replicas=formation.num_actors,
        serves=frozenset({"gradients"}),
        needs=frozenset({"gradients"}),
        num_threads=formation.worker_threads,
        about=f"{_share(config)} environments each, {config.algo}, {config.optimizer.name}",
    )
    edges = [Edge("worker", "gradients", "worker")]
    return _judged(config, "allreduce", [worker], edges, by="worker")


def hogwild(config: RunConfig) -> Program:
    """Workers that act, learn and write to the same weights; a keeper that watches over them."""
    formation = config.formation_config
    assert isinstance(formation, HogwildConfig)
    worker = Node(
        name="worker",
        replicas=formation.num_actors,
        serves=frozenset({"weights"}),
        needs=frozenset({"weights"}),
        num_threads=formation.worker_threads,
        about=f"{_share(config)} environments each, {config.algo}, {config.optimizer.name}",
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
    formation, algo = config.formation_config, config.algo_config
    assert isinstance(formation, ReplayConfig)
    assert isinstance(algo, DQNConfig)
    nodes = [
        Node(
            name="actor",
            replicas=formation.num_actors,
            needs=frozenset({"steps", "params"}),
            about=f"{_share(config)} environments each",
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


def _share(config: RunConfig) -> int:
    return config.env.num_envs // config.formation_config.num_actors


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


def build_program(config: RunConfig) -> Program:
    """The program of the configured formation."""
    with naming(algo=block_name(config.algo), formation=config.formation):
        return FORMATIONS[config.formation][0](config)
