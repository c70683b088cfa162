"""Whole episodes, each from its own seed, played side by side.

::

    envs = EpisodeEnvs(config, seeds=seeds, num_envs=16, max_steps=None)
    obs = envs.start()
    while envs.running.any():
        obs = envs.step(actions)          # rows that are not running are ignored
    envs.returns, envs.lengths, envs.info # in the order of the seeds

A lane that finishes takes the next episode that nobody has begun, until none is left: every episode
is played to its end, so short ones are not favoured.

Shapes: B lanes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rookery.core.spec import Array, Arrays
from rookery.envs.make import EnvConfig, make_seeded
from rookery.envs.transition import StepResult


class EpisodeEnvs:
    """Plays one episode per seed over ``num_envs`` lanes."""

    def __init__(
        self,
        config: EnvConfig,
        *,
        seeds: Sequence[int],
        num_envs: int,
        max_steps: int | None,
        info_keys: tuple[str, ...] = (),
    ) -> None:
        self.seeds = list(seeds)
        self.max_steps = max_steps
        self.returns = [0.0] * len(self.seeds)
        self.lengths = [0] * len(self.seeds)
        self.info = {key: [math.nan] * len(self.seeds) for key in info_keys}
        """Values of ``info`` at their ends; NaN where there was none."""
        config = replace(config, on_env_error="stop")
        self._envs, self._waves = make_seeded(
            config, num_envs, len(self.seeds), self._seed_for, info_keys
        )
        self.num_envs = self._envs.num_envs
        self.episode: Array = np.zeros(self.num_envs, np.int64)
        self.running: Array = np.zeros(self.num_envs, np.bool_)
        self.begins: Array = np.ones(self.num_envs, np.bool_)
        self._return: Array = np.zeros(self.num_envs, np.float64)
        self._length: Array = np.zeros(self.num_envs, np.int64)
        self._next = 0
        self.num_over = 0
        """Episodes that have ended."""
        self.num_cut = 0
        """Episodes that ``max_steps`` ended."""

    def _seed_for(self, lane: int) -> int:
        """The seed of the next episode, which ``lane`` begins; any seed when none is left."""
        self._return[lane], self._length[lane] = 0.0, 0
        self.running[lane] = self._next < len(self.seeds)
        if not self.running[lane]:
            return 0
        self.episode[lane] = self._next
        self._next += 1
        return self.seeds[int(self.episode[lane])]

    def start(self) -> Arrays:
        """Begin the first episodes."""
        self.begins = np.ones(self.num_envs, np.bool_)
        return self._envs.reset()

    def step(self, actions: Array) -> Arrays:
        """Step every lane; ended episodes are noted and followed by the next."""
        episode, running = self.episode.copy(), self.running.copy()
        past_return, past_length = self._return.copy(), self._length.copy()
        result = self._envs.step(actions)
        # Lanes that ended were given their next episode within the step: use what was before.
        past_return += result.reward
        past_length += result.valid
        ended = result.terminated | result.truncated
        over = running & (ended | self._out_of_time(past_length))
        for lane in np.flatnonzero(over):
            self.returns[episode[lane]] = float(past_return[lane])
            self.lengths[episode[lane]] = int(past_length[lane])
            for key, values in self.info.items():
                values[episode[lane]] = float(result.info[key][lane])
        self.num_over += int(np.count_nonzero(over))
        self.num_cut += int(np.count_nonzero(over & ~ended))
        self._return = np.where(ended, 0.0, past_return)
        self._length = np.where(ended, 0, past_length)
        self.begins = result.reset.copy()
        return self._go_on(result, over, ended)

    def _out_of_time(self, length: Array) -> Array:
        if self.max_steps is None:
            return np.zeros(self.num_envs, np.bool_)
        return length >= self.max_steps

    def _go_on(self, result: StepResult, over: Array, ended: Array) -> Arrays:
        """What to act on next, after giving lanes that are over something to do."""
        if self._waves:
            self.running &= ~over
            if not self.running.any() and self._next < len(self.seeds):
                return self.start()
            return result.obs
        obs = result.obs
        for lane in np.flatnonzero(over & ~ended):  # cut by max_steps, not by the environment
            obs = self._envs.begin(int(lane))  # type: ignore[attr-defined]
            self.begins[lane] = True
        return obs

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
