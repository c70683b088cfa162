"""Actors, replay and a learner of formation ``replay`` in one thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rookery.algos.algorithm import build_algorithm
from rookery.algos.dqn import DQN, DQNConfig
from rookery.core.ports import ParamSink, ParamSource
from rookery.core.seeding import seed_of, stream
from rookery.core.sequence import Steps
from rookery.core.signature import Signature
from rookery.core.spec import Array, Arrays
from rookery.envs.make import make_vector
from rookery.params.sharded import Shards
from rookery.programs.formations import ReplayConfig
from rookery.replay.store import ReplayStore
from rookery.replay.table import Sample
from rookery.roles.build import build_policy, torch_device
from rookery.roles.explorer import Explorer, StepSink
from rookery.roles.pulse import Pulse
from rookery.roles.replay import Replay, step_spec
from rookery.roles.replay_learner import ReplayLearner, SequenceSource
from rookery.runs.checkpoint_files import State
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.transport.memory import ParamCell

_LOG = logging.getLogger(__name__)
_REPLAY = "replay"


def replay_configs(config: RunConfig) -> tuple[ReplayConfig, DQNConfig]:
    """The settings of the formation and of the algorithm."""
    formation, algo = config.formation_config, config.algo_config
    assert isinstance(formation, ReplayConfig)
    assert isinstance(algo, DQNConfig)
    return formation, algo


def told_keys(config: RunConfig) -> tuple[str, ...]:
    """What is told of each episode beside its return and length."""
    return (*config.metrics.info_keys, *replay_configs(config)[1].told)


def build_replay(config: RunConfig, signature: Signature) -> Replay:
    """The table and what goes with it."""
    formation, algo = replay_configs(config)
    policy = build_policy(config, signature)
    return Replay(
        _algorithm(config, policy.recurrent),
        step_spec(algo, policy),
        num_envs=config.env.num_envs,
        num_actors=formation.num_actors,
        rng=stream(config.seed, "replay"),
    )


def build_explorer(
    config: RunConfig,
    signature: Signature,
    replica: int,
    *,
    sink: StepSink,
    params: ParamSource,
    life: int = 0,
    start_steps: int = 0,
    pulse: Pulse | None = None,
    leave: Callable[[Arrays], None] | None = None,
) -> Explorer:
    """Actor ``replica``; neither a replacement nor a resumed one repeats what was done before."""
    formation, algo = replay_configs(config)
    seed, num_envs = config.seed, config.env.num_envs
    if life or start_steps:
        seed = seed_of(config.seed, "replacement", replica, life, start_steps)
    envs = make_vector(
        config.env,
        run_seed=seed,
        first_env=replica * num_envs,
        num_envs=num_envs,
        info_keys=config.metrics.info_keys,
    )
    return Explorer(
        config=algo,
        envs=envs,
        policy=build_policy(config, signature),
        sink=sink,
        params=params,
        rng=stream(seed, "actor", replica),
        streams=np.arange(replica * num_envs, (replica + 1) * num_envs),
        num_streams=formation.num_actors * num_envs,
        info_keys=config.metrics.info_keys,
        pulse=pulse,
        leave=leave,
    )


def build_replay_learner(
    config: RunConfig,
    signature: Signature,
    *,
    source: SequenceSource,
    params: ParamSink,
    shards: Shards | None = None,
    pulse: Pulse | None = None,
    kind: Callable[..., ReplayLearner] = ReplayLearner,
) -> ReplayLearner:
    """The learner, or one of a group of them."""
    policy = build_policy(config, signature)
    return kind(
        policy=policy,
        algorithm=_algorithm(config, policy.recurrent),
        optimizer=config.optimizer,
        source=source,
        params=params,
        info_keys=told_keys(config),
        shards=shards,
        pulse=pulse,
    )


def build_replayed(
    config: RunConfig,
    signature: Signature,
    run: RunDirectory,
    *,
    start_steps: Callable[[int], int],
) -> tuple[list[Explorer], ReplayLearner]:
    """All actors, each from its ``start_steps``, and their learner, around a table."""
    formation, _ = replay_configs(config)
    replay, cell = build_replay(config, signature), ParamCell()
    ends = DirectEnds(replay, 2 + len(told_keys(config)))
    kind = partial(WithReplay, replay=replay, run=run, save=formation.save_replay)
    learner = build_replay_learner(config, signature, source=ends, params=cell, kind=kind)
    actors = [
        build_explorer(
            config,
            signature,
            replica,
            sink=TurnSink(ends, replica, formation.num_actors),
            params=cell,
            start_steps=start_steps(replica),
        )
        for replica in range(formation.num_actors)
    ]
    return actors, learner


def _algorithm(config: RunConfig, recurrent: bool) -> DQN:
    built: Any = build_algorithm(
        config.algo, config.algo_config, recurrent=recurrent, device=torch_device(config)
    )
    assert isinstance(built, DQN)
    return built


class DirectEnds:
    """Both ends of replay for who is in its own thread: :class:`StepSink`, `SequenceSource`."""

    def __init__(self, replay: Replay, episode_width: int) -> None:
        self.replay, self.episode_width = replay, episode_width
        self.memory = replay.table.allocate(replay.config.batch_size)
        self.current: Sample | None = None

    def can_put(self) -> bool:
        """Whether replay takes more before more is learned."""
        return self.replay.can_put()

    def put(self, steps: Steps, episodes: Array) -> None:
        """Into the table."""
        self.replay.put(steps, episodes)

    def total_steps(self) -> int:
        """What the table counted."""
        return self.replay.steps

    def filling(self) -> bool:
        """Whether nothing may be sampled yet."""
        return not self.replay.limiter.begun

    def can_sample(self) -> bool:
        """Whether replay gives more before more is put."""
        return self.replay.can_sample()

    def sample(self) -> Sample:
        """Out of the table."""
        self.current = self.replay.sample(self.memory)
        return self.current

    def release(self, priorities: Array) -> None:
        """Into the table."""
        assert self.current is not None
        self.replay.update_priorities(self.current.keys, priorities)
        self.current = None

    def progress(self) -> tuple[int, Array]:
        """What the table counted."""
        return self.replay.steps, self.replay.take_episodes(self.episode_width)

    def wait(self, timeout_secs: float) -> None:
        """In one thread nobody moves meanwhile."""


class TurnSink:
    """One actor's end of replay: in one thread actors take turns, else the first that asks would
    put all that replay takes."""

    def __init__(self, ends: DirectEnds, replica: int, num_actors: int) -> None:
        self.ends, self.replica, self.num_actors = ends, replica, num_actors

    def can_put(self) -> bool:
        """Whether replay takes more, and from this actor."""
        replay = self.ends.replay
        turn = replay.puts // replay.config.rollout_steps % self.num_actors
        return turn == self.replica and self.ends.can_put()

    def put(self, steps: Steps, episodes: Array) -> None:
        """Into the table."""
        self.ends.put(steps, episodes)

    def total_steps(self) -> int:
        """What the table counted."""
        return self.ends.total_steps()

    def wait(self, timeout_secs: float) -> None:
        """In one thread nobody moves meanwhile."""


class WithReplay(ReplayLearner):
    """A learner in one thread with its replay, which is saved with it unless there is no store."""

    def __init__(self, *, replay: Replay, run: RunDirectory, save: bool, **parts: Any) -> None:
        super().__init__(**parts)
        self.replay, self.run = replay, run
        self.store = ReplayStore(run.replay) if save else None

    def save_replay(self) -> dict[str, State]:
        """A snapshot beside the checkpoint that is being made; what the checkpoint says of it."""
        if self.store is None:
            return {}
        self.replay.save(self.store, self.steps, keep=checkpoint_steps(self.run.checkpoints))
        return snapshot_part(self.steps)

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from a checkpoint; without a snapshot, fill the table anew."""
        super().load_state(parts)
        saved = parts[_REPLAY].data["snapshot"] if _REPLAY in parts else None
        if self.store is not None and saved in self.store.available():
            self.replay.load(self.store, saved)
        else:
            _LOG.warning("no snapshot of the replay: it is filled anew before learning goes on")
            self.replay.steps = self.steps

    def leave_episodes(self, actors: Iterable[Explorer]) -> None:
        """No sequence goes on with the steps of an episode that it did not begin in."""
        for actor in actors:
            if len(begun := actor.begun_anew()):
                self.replay.table.abandon(begun)


def snapshot_part(steps: int) -> dict[str, State]:
    """What a checkpoint says of the snapshot beside it."""
    return {_REPLAY: State({}, {"snapshot": steps})}


def checkpoint_steps(checkpoints: Path) -> set[int]:
    """The steps of the checkpoints there are."""
    return {int(path.name) for path in checkpoints.glob("*") if path.name.isdigit()}
