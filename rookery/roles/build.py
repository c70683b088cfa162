"""Roles from a plan and their ends of ports: the same for every engine.

A formation names one of these as its node's ``build``, with the settings that are its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from rookery.algos.dqn import DQNConfig
from rookery.core.group import Alone, Group
from rookery.core.ports import End, ExperienceSource, ParamSink
from rookery.core.seeding import stream
from rookery.core.sequence import StepSpec
from rookery.core.spec import zeros
from rookery.envs.make import make_vector
from rookery.envs.transition import VectorEnv
from rookery.params.sharded import Shards
from rookery.programs.place import Place
from rookery.replay.store import ReplayStore
from rookery.roles.actor import Actor
from rookery.roles.async_learner import AsyncLearner
from rookery.roles.evaluator import Evaluator
from rookery.roles.explorer import Explorer
from rookery.roles.exploring_lane import ExploringLane
from rookery.roles.free_learner import FreeLearner
from rookery.roles.hogwild import HogwildLearner, HogwildSession, HogwildWorker, Holder
from rookery.roles.learner import Learner
from rookery.roles.replay import Replay
from rookery.roles.replay_learner import ReplayLearner
from rookery.roles.replay_server import ReplayServer
from rookery.roles.worker import Worker
from rookery.runs.directory import RunDirectory
from rookery.transport.blocks import BlockPort
from rookery.transport.weights import WeightsPort

_LOG = logging.getLogger(__name__)


# ---- who acts on rollouts, and who learns from them ----------------------------------------------


def build_actor(
    place: Place, sink: Any = None, params: Any = None, device: torch.device | None = None
) -> Actor:
    """An actor with its share of the environments; a worker's has ``sink`` and ``params`` of its
    own."""
    plan = place.plan
    half = plan.envs_each // plan.config.env.halves
    vectors = [_envs(place, first, half) for first in range(0, plan.envs_each, half)]
    device = device or plan.device()
    return Actor(
        envs=vectors[0],
        second=vectors[1] if len(vectors) > 1 else None,
        policy=plan.policy(device),
        sink=sink if sink is not None else _sink(place),
        params=params if params is not None else place.ports.use(WeightsPort.name),
        rng=stream(place.actor_seed, "actor", place.replica),
        device=device,
        heartbeat=place.heartbeat,
        leaving=place.leaving,
        exactly=not plan.concurrent,
    )


def _sink(place: Place) -> Any:
    """Where rollouts go: a round of all actors, or a queue."""
    name = next(name for name in place.ports.uses if name in ("experience", "queue"))
    return place.ports.use(name)


def _envs(place: Place, first: int, num_envs: int) -> VectorEnv:
    """Some of the actor's environments."""
    plan = place.plan
    return make_vector(
        plan.config.env,
        run_seed=place.actor_seed,
        first_env=place.replica * plan.envs_each + first,
        num_envs=num_envs,
        info_keys=plan.info_keys,
    )


def build_learner(place: Place) -> Learner:
    """The learner of a round of all actors."""
    ports = place.ports
    return make_learner(place, Learner, ports.serve(BlockPort.name), ports.serve(WeightsPort.name))


def build_async_learner(place: Place) -> Learner:
    """The learner of a queue; its rollouts are saved where nobody puts meanwhile."""
    kind = partial(AsyncLearner, keep_queue=not place.plan.concurrent)
    source = place.ports.serve("queue")
    return make_learner(place, kind, source, place.ports.serve(WeightsPort.name))


def make_learner(
    place: Place,
    kind: Callable[..., Learner],
    source: ExperienceSource,
    params: ParamSink,
    *,
    group: Group | None = None,
    device: torch.device | None = None,
) -> Learner:
    """A learner of ``kind`` between ``source`` and ``params``; with a ``group``, this member's."""
    plan = place.plan
    device = device or plan.device()
    rank = [group.rank] if group is not None and group.rank else []
    return kind(
        policy=plan.policy(device),
        algorithm=plan.algorithm(device, group),
        optimizer=plan.config.optimizer,
        source=source,
        params=params,
        rng=stream(plan.config.seed, "learner", *rank),
        group=group,
        heartbeat=place.heartbeat,
        leaving=place.leaving,
    )


# ---- workers: both -------------------------------------------------------------------------------


def _worker_parts(
    place: Place,
    kind: Callable[..., Learner],
    group: Group,
    device: torch.device | None = None,
) -> tuple[Actor, Any]:
    """An actor and a learner joined by memory of their own."""
    plan = place.plan
    rounds = plan.config.on_policy.rollouts_per_update
    block = BlockPort(plan.rollout, num_actors=1, num_envs=plan.envs_each, rounds=rounds)
    weights = WeightsPort(plan.params)
    between, cell = End(zeros(block.layout())), End(zeros(weights.layout()))
    learner = make_learner(
        place, kind, block.server(between), weights.server(cell), group=group, device=device
    )
    return build_actor(place, block.client(between), weights.client(cell), device), learner


def build_worker(place: Place, check_every: int) -> Worker:
    """A worker of a group."""
    group: Group = place.ports.use("gradients")
    group.waiting = place.heartbeat.waiting
    actor, learner = _worker_parts(place, Learner, group)
    return Worker(actor, learner, check_every=check_every, run_seed=place.plan.config.seed)


def build_hogwild_worker(place: Place, devices: tuple[str, ...]) -> HogwildWorker:
    """A worker around shared weights, on the device of its turn."""
    plan, ports = place.plan, place.ports
    device = plan.device(devices[place.replica % len(devices)] if devices else None)
    kind = partial(
        HogwildLearner,
        memory=ports.use("weights"),
        reports=ports.use("reports"),
        worker=place.replica,
    )
    actor, learner = _worker_parts(place, kind, Alone(place.replica), device)
    return HogwildWorker(
        actor,
        learner,
        place.own,
        run_seed=plan.config.seed,
        total_steps=plan.config.total_steps,
        varies=not place.exact,
    )


def build_hogwild_session(place: Place) -> HogwildSession:
    """Who keeps the session of hogwild workers; what is shared is in main memory."""
    plan, ports = place.plan, place.ports
    nothing: Any = None  # it learns from no rollouts and publishes to nobody
    kind = partial(Holder, memory=ports.serve("weights"), worker=0)
    holder = make_learner(place, kind, nothing, nothing, device=torch.device("cpu"))
    assert isinstance(holder, Holder)
    return HogwildSession(
        holder,
        ports.serve("reports"),
        place.own,
        info_keys=plan.info_keys,
        looks_inside=plan.config.metrics.histograms,
    )


# ---- replay --------------------------------------------------------------------------------------


def build_explorer(place: Place, algo: DQNConfig) -> Explorer:
    """An actor that puts steps."""
    plan, ports, each = place.plan, place.ports, place.plan.envs_each
    streams = np.arange(place.replica * each, (place.replica + 1) * each)
    lane = ExploringLane(
        config=algo,
        envs=_envs(place, 0, each),
        policy=plan.policy(),
        sink=ports.use("steps"),
        rng=stream(place.actor_seed, "actor", place.replica),
        # Joined actors explore as those of the run: its ladder and arms are the recipe's.
        streams=streams % plan.config.env.num_envs,
        num_streams=plan.config.env.num_envs,
        info_keys=plan.info_keys,
        heartbeat=place.heartbeat,
        carried_over=ports.use("actor_state"),
    )
    return Explorer(lane, ports.use(WeightsPort.name))


def build_replay(place: Place, spec: StepSpec, *, save: bool) -> ReplayServer:
    """The table, restored if the run goes on."""
    plan, ports = place.plan, place.ports
    run = RunDirectory.open(place.run) if place.run is not None and save else None
    replay = Replay(
        plan.algorithm(),
        spec,
        num_envs=plan.envs_each,
        num_actors=plan.num_actors,
        rng=stream(plan.config.seed, "replay"),
    )
    server = ReplayServer(
        replay,
        ports.serve("steps"),
        ports.serve("sequences"),
        ports.serve("snapshots"),
        life=place.life,
        ahead=plan.concurrent,
        store=ReplayStore(run.replay) if run is not None else None,
        checkpoints=run.checkpoints if run is not None else None,
        heartbeat=place.heartbeat,
    )
    if (loss := server.restore(place.start_steps)) is not None:
        place.warn(loss)
    return server


def build_replay_learner(place: Place, algo: DQNConfig, *, save: bool) -> ReplayLearner:
    """A learner from replay: alone, one of a group, or one of several around shared weights."""
    plan, ports = place.plan, place.ports
    kind: Callable[..., ReplayLearner] = ReplayLearner
    shards: Shards | None = ports.uses.get("shards")
    if shards is not None:
        shards.group.waiting = place.heartbeat.waiting
    if "weights" in ports.uses:
        kind = partial(FreeLearner, memory=ports.use("weights"), worker=place.replica)
    return kind(
        policy=plan.policy(),
        algorithm=plan.algorithm(),
        optimizer=plan.config.optimizer,
        source=ports.use("sequences"),
        params=ports.serve(WeightsPort.name),
        info_keys=(*plan.info_keys, *algo.told),
        num_envs=plan.config.env.num_envs,
        shards=shards,
        snapshots=ports.use("snapshots") if save else None,
        actor_states=ports.serve("actor_state"),
        heartbeat=place.heartbeat,
        warn=place.warn,
    )


# ---- evaluation ----------------------------------------------------------------------------------


def build_evaluator(place: Place) -> Evaluator:
    """Who scores saved policies."""
    assert place.run is not None
    return Evaluator(
        place.plan.config,
        place.plan.policy(),
        place.ports.serve("evaluation"),
        place.run,
        should_stop=place.should_stop,
        heartbeat=place.heartbeat,
    )
