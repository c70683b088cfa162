"""A replay table with its rate limiter: takes steps, gives sequences, keeps the two in proportion.

::

    while running:
        if steps_wait and replay.can_put():
            replay.put(steps, episodes)
        if somebody_learns and replay.can_sample():
            sample = replay.sample(out)
            ...
            replay.update_priorities(sample.keys, priorities)

Shapes: B environments of one actor, N sequences.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from rookery.algos.dqn import DQN, DQNConfig
from rookery.core.seeding import generator_state, restore_generator
from rookery.core.sequence import Sample, Sequences, Steps, StepSpec
from rookery.core.spec import Array
from rookery.replay.rate_limiter import RateLimiter, RateLimiterConfig
from rookery.replay.settings import TableConfig
from rookery.replay.store import ReplayStore
from rookery.replay.table import Table

METRICS = (
    "replay/steps",
    "replay/sequences",
    "replay/ratio",
    "replay/bytes",
    "replay/stale_updates",
    "replay/lost",
)
"""What replay tells of itself: rows and sequences held; how often a step was learned from, on
average; memory; priorities that came too late; sequences dropped before they were whole."""


def table_config(config: DQNConfig, num_streams: int) -> TableConfig:
    """The table of an algorithm's settings."""
    return TableConfig(
        capacity_steps=config.capacity_steps,
        num_streams=num_streams,
        batch_size=config.batch_size,
        sequence=config.sequence,
        priority_exponent=config.priority_exponent,
    )


def limiter_config(config: DQNConfig, num_envs: int) -> RateLimiterConfig:
    """The rate limiter of an algorithm's settings, for actors of ``num_envs`` environments."""
    ratio = None
    if config.steps_per_update is not None:
        ratio = config.batch_size / config.steps_per_update
    return RateLimiterConfig(
        samples_per_insert=ratio,
        min_size=config.learning_starts,
        max_put=num_envs * config.rollout_steps,
        max_sample=config.batch_size,
    )


class Replay:
    """A table, its rate limiter, and what the episodes told that went by."""

    def __init__(
        self,
        algorithm: DQN,
        spec: StepSpec,
        *,
        num_envs: int,
        num_actors: int,
        rng: np.random.Generator,
    ) -> None:
        config = algorithm.config
        self.algorithm, self.config = algorithm, config
        self.table = Table(table_config(config, num_envs * num_actors), spec)
        self.limiter = RateLimiter(limiter_config(config, num_envs))
        self.rng = rng
        self.steps = 0
        """Environment steps put so far in the run."""
        self.puts = 0
        """How often an actor put steps; of actors that take turns it tells whose turn is next."""
        self.episodes: list[Array] = []
        """Return, length and info of each episode that ended since :meth:`take_episodes`."""
        self._blind = replace(spec, obs={})

    def can_put(self) -> bool:
        """Whether an actor may put what it does next."""
        # Steps are counted, and the first of them make no sequence yet.
        return not self.table.can_sample() or self.limiter.can_put(self.limiter.config.max_put)

    def put(self, steps: Steps, episodes: Array) -> None:
        """Add one step of some environments, and ``[E, ...]`` what ended episodes told."""
        keys = self.table.put(steps)
        valid = len(steps.stream) if steps.valid is None else np.count_nonzero(steps.valid)
        self.limiter.record_put(int(valid))
        self.steps += int(valid)
        self.puts += 1
        if self.config.actor_priorities and len(keys):
            self._rank(keys)
        if len(episodes):
            self.episodes.append(episodes)

    def _rank(self, keys: Array) -> None:
        """Give new sequences the errors of the actor's own values."""
        out = self._blind.sequences(self.config.sequence.num_steps, len(keys))
        priorities = self.algorithm.first_priorities(self.table.gather(keys, out))
        self.table.update_priorities(keys, priorities)

    def can_sample(self) -> bool:
        """Whether a batch may be learned from."""
        return self.table.can_sample() and self.limiter.can_sample(self.config.batch_size)

    def sample(self, out: Sequences) -> Sample:
        """A batch, gathered into ``out``."""
        self.limiter.record_sample(self.config.batch_size)
        return self.table.sample(self.config.batch_size, self.rng, out)

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        """What learning from a sample said about its sequences."""
        if self.config.priority_exponent:
            self.table.update_priorities(keys, priorities)

    def take_episodes(self, width: int) -> Array:
        """``[E, width]`` the episodes that ended since the last call."""
        found = np.concatenate(self.episodes) if self.episodes else np.empty((0, width))
        self.episodes.clear()
        return found

    def metrics(self) -> dict[str, float]:
        """How full it is, and how often each sequence is learned from."""
        table = self.table
        told = (
            table.num_steps,
            table.size,
            self.limiter.replay_ratio * self.config.length,
            table.memory_bytes(),
            table.num_stale_updates,
            table.num_lost,
        )
        return dict(zip(METRICS, told, strict=True))

    def state_data(self) -> dict[str, Any]:
        """The JSON data that goes with a snapshot of the table."""
        episodes = np.concatenate(self.episodes).tolist() if self.episodes else []
        return {
            "limiter": self.limiter.state_dict(),
            "rng": generator_state(self.rng),
            "steps": self.steps,
            "puts": self.puts,
            "episodes": episodes,
        }

    def save(self, store: ReplayStore, steps: int, keep: Collection[int]) -> None:
        """A snapshot that belongs to the checkpoint at ``steps``; all but those of ``keep`` go."""
        store.save(steps, self.table, self.state_data())
        store.prune({*keep, steps})

    def load(self, store: ReplayStore, steps: int) -> None:
        """Go on from the snapshot of ``steps``."""
        arrays, table, data = store.load(steps)
        self.table.load_state_dict(arrays, table)
        self.limiter.load_state_dict(data["limiter"])
        restore_generator(self.rng, data["rng"])
        self.steps, self.puts = data["steps"], data.get("puts", 0)
        self.episodes = [np.array(data["episodes"])] if data["episodes"] else []
