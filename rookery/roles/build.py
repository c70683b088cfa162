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
from rookery.nets.actor_critic import ActorCritic
from rookery.params.sharded import Shards
from rookery.programs.place import Place
from rookery.programs.plan import Plan
from rookery.replay.store import ReplayStore
from rookery.roles.actor import Actor, EnvHalf
from rookery.roles.async_learner import AsyncLearner
from rookery.roles.evaluator import Evaluator
from rookery.roles.explorer import Explorer
from rookery.roles.exploring_lane import ExploringLane
from rookery.roles.free_learner import FreeLearner
from rookery.roles.hogwild import HogwildLearner, HogwildSession, HogwildWorker, Holder
from rookery.roles.inference import Inference, Served
from rookery.roles.learner import Learner
from rookery.roles.parameter_server import (
    ParameterServer,
    PartOptimizer,
    Rule,
    Shard,
    kept_specs,
    parts_of,
)
from rookery.roles.policy_replica import PolicyReplica
from rookery.roles.pushing import PushingLearner, PushingWorker
from rookery.roles.recorder import Recorder
from rookery.roles.replay import Replay
from rookery.roles.replay_learner import ReplayLearner
from rookery.roles.replay_server import ReplayServer
from rookery.roles.rollout_lane import RolloutLane
from rookery.roles.sharded_session import ShardedSession
from rookery.roles.thin_actor import ThinActor
from rookery.roles.worker import Worker
from rookery.runs.directory import RunDirectory
from rookery.transport.blocks import BlockPort
from rookery.transport.reports import ReportsPort
from rookery.transport.requests import RequestServer, RequestsPort, Seat
from rookery.transport.shards import KeptPort, ShardPort, ShardServer
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


# ---- parameter servers ---------------------------------------------------------------------------


def build_pushing_worker(place: Place) -> PushingWorker:
    """A worker that pushes its gradients."""
    plan, ports = place.plan, place.ports
    kind = partial(PushingLearner, clients=ports.use(ShardPort.name))
    actor, learner = _worker_parts(place, kind, Alone(place.replica))
    return PushingWorker(
        actor,
        learner,
        ports.use(ReportsPort.name),
        place.own,
        run_seed=plan.config.seed,
        most_episodes=plan.steps_each,
        varies=not place.exact,
    )


def build_parameter_server(
    place: Place, rule: Callable[..., Rule], num_servers: int
) -> ParameterServer:
    """A server of one part of the weights."""
    plan, ports, config = place.plan, place.ports, place.plan.config.optimizer
    part = parts_of(plan.num_params, num_servers)[place.replica]
    num = part.stop - part.start
    server: ShardServer = ports.serve(ShardPort.name)
    shard = Shard(
        server.of_length(num),
        PartOptimizer(config, num),
        plan.moments,
        start_steps=place.start_steps,
        warn=place.warn,
    )
    return ParameterServer(
        shard,
        rule(warn=_LOG.warning if place.replica else place.warn),  # all see the same
        part=part,
        kept=ports.use(KeptPort.name),
        kept_like=kept_specs(plan.num_params, config, plan.moments),
        saves=ports.serve("part"),
        heartbeat=place.heartbeat,
        warn=place.warn,
    )


def build_sharded_session(place: Place) -> ShardedSession:
    """Who keeps the session of workers and parameter servers."""
    plan, ports = place.plan, place.ports
    nothing: Any = None  # it learns from no rollouts and publishes to nobody
    holder = make_learner(place, Learner, nothing, nothing, device=torch.device("cpu"))
    return ShardedSession(
        holder,
        ports.serve(ReportsPort.name),
        ports.serve(KeptPort.name),
        ports.use("part"),
        place.own,
        info_keys=plan.info_keys,
        exactly=not plan.concurrent,
    )


# ---- replay --------------------------------------------------------------------------------------


def build_explorer(place: Place, algo: DQNConfig) -> Explorer:
    """An actor that puts steps."""
    plan, ports = place.plan, place.ports
    lane = _exploring_lane(
        place,
        algo,
        plan,
        place.replica,
        name=f"actor-{place.replica}",
        envs=_envs(place, 0, plan.envs_each),
        policy=plan.policy(),
        sink=ports.use("steps"),
        rng=stream(place.actor_seed, "actor", place.replica),
        carried_over=ports.use("actor_state"),
    )
    return Explorer(lane, ports.use(WeightsPort.name))


def _exploring_lane(
    place: Place, algo: DQNConfig, plan: Plan, actor: int, **given: Any
) -> ExploringLane:
    """The lane of ``actor`` by the sizes of ``plan``."""
    num_envs, each = plan.config.env.num_envs, plan.envs_each
    return ExploringLane(
        config=algo,
        # Joined actors explore as those of the run: its ladder and arms are the recipe's.
        streams=np.arange(actor * each, (actor + 1) * each) % num_envs,
        num_streams=num_envs,
        info_keys=plan.info_keys,
        heartbeat=place.heartbeat,
        **given,
    )


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


# ---- inference -----------------------------------------------------------------------------------


def build_thin_actor(place: Place, num_parts: int) -> ThinActor:
    """An actor that asks for its actions."""
    each = place.plan.envs_each // num_parts
    parts = [_envs(place, part * each, each) for part in range(num_parts)]
    return ThinActor(parts, place.ports.use(RequestsPort.name), place.heartbeat)


def build_inference(
    place: Place,
    algo: DQNConfig | None,
    behind: Plan,
    num_parts: int,
    num_lanes: int,
    device: str | None,
    max_batch_envs: int | None,
) -> Inference:
    """The one who chooses for some actors; each of their parts is an actor to the plan behind.

    With the settings ``algo`` they put steps for replay, without they put rollouts.
    """
    plan, ports = place.plan, place.ports
    requests: RequestServer = ports.serve(RequestsPort.name)
    policy = plan.policy(plan.device(device))
    weights = PolicyReplica(policy, ports.use(WeightsPort.name))
    first = place.replica * num_lanes // num_parts
    start = 0 if place.exact else place.start_steps

    def draws(actor: int, part: int, greeting: int) -> np.random.Generator:
        """What an actor of this life would draw from; of several parts, each has its own."""
        life = greeting - 1 + place.life * _GREETINGS
        seed = plan.actor_seed(first + actor, life, start)
        return stream(seed, "actor", first + actor, *([part] if part else []))

    served = []
    for lane in range(num_lanes):
        actor, part = divmod(lane, num_parts)
        seat = requests.seat(actor, part, plan.signature)
        rng = draws(actor, part, 1)
        made = _served_lane(place, algo, behind, first + actor, lane, seat, weights, rng)
        served.append(Served(made, seat))
    return Inference(
        served,
        weights,
        requests,
        draws,
        max_batch_envs=max_batch_envs,
        keeps_weights=algo is not None and algo.publish_every > 1,
        life=place.life,
        heartbeat=place.heartbeat,
    )


_GREETINGS = 1_000_000
"""More than actors greet one inference."""


def _served_lane(
    place: Place,
    algo: DQNConfig | None,
    behind: Plan,
    actor: int,
    lane: int,
    seat: Seat,
    weights: PolicyReplica,
    rng: np.random.Generator,
) -> ExploringLane | RolloutLane:
    """Lane ``lane`` of this replica, which is some environments of ``actor``."""
    ports, policy = place.ports, weights.policy
    if algo is None:
        assert isinstance(policy, ActorCritic)
        envs = EnvHalf(seat, policy, policy.device, place.heartbeat)
        return RolloutLane(envs, _sink(place)[lane], weights, rng)
    return _exploring_lane(
        place,
        algo,
        behind,
        place.replica * len(ports.use("steps")) + lane,
        name=f"actor-{actor}",
        envs=seat,
        policy=policy,
        sink=ports.use("steps")[lane],
        rng=rng,
        carried_over=ports.use("actor_state")[lane],
    )


# ---- who looks at what was saved -----------------------------------------------------------------


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
        late_secs=_late_secs(place),
    )


def _late_secs(place: Place) -> float:
    """How much later than at the head other hosts may see a checkpoint."""
    return _STORAGE_SECS if place.plan.config.hosts.leaves else 0.0


_STORAGE_SECS = 60.0
"""NFS looks a directory up again after this long at the latest."""


def build_recorder(place: Place) -> Recorder:
    """Who films saved policies."""
    assert place.run is not None
    return Recorder(
        place.plan.config.record,
        place.ports.serve("recording"),
        RunDirectory.open(place.run),
        seed=place.plan.config.seed,
        warn=place.warn,
        should_stop=place.should_stop,
        heartbeat=place.heartbeat,
        late_secs=_late_secs(place),
    )
