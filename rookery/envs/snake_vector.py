"""Many snakes as one gymnasium vector environment, stepped in NumPy batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from rookery.envs.snake import action_space, check_max_steps, observation_space
from rookery.envs.snake_world import BoolArray, FloatArray, IntArray, SnakeWorld, StateArray

Rewards = NDArray[np.float64]


class SnakeVectorEnv(VectorEnv[FloatArray, IntArray, Any]):
    """`num_envs` independent `SnakeEnv`, the same episodes from the same seeds.

        envs = SnakeVectorEnv(num_envs=1024)
        features, infos = envs.reset(seed=0)  # snake i is seeded with 0 + i
        features, rewards, terminated, truncated, infos = envs.step(actions)

    An ended episode starts anew within the same step (`AutoresetMode.SAME_STEP`): its row of the
    features then belongs to the new episode, and `infos["final_obs"]` [num_envs, 35] holds the last
    features of the old one in the rows where `infos["_final_obs"]` is true. Both keys are there
    only when some episode ended. Every returned array is fresh; the caller may keep it.

    Args:
        num_envs: Number of snakes.
        max_steps: Truncate an episode after so many steps; None for no limit.
    """

    seeds_each = True
    """`reset` takes one seed per snake, so evaluation may give each episode its own."""

    def __init__(self, num_envs: int = 1, max_steps: int | None = None) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.num_envs = num_envs
        self.max_steps = check_max_steps(max_steps)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space: gym.spaces.Box[np.float32] = observation_space()
        self.single_action_space: gym.spaces.Discrete = action_space()
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._world = SnakeWorld([seeding.np_random()[0] for _ in range(num_envs)])
        self._everyone: BoolArray = np.ones(num_envs, dtype=np.bool_)

    @property
    def world(self) -> SnakeWorld:
        """The snakes themselves, to look at."""
        return self._world

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start a new episode for every snake.

        Args:
            seed: None continues the generators, an int seeds snake i with seed + i, a sequence
                gives one seed (or None) to each.
            options: Not used.
        """
        for i, own in enumerate(self._seeds(seed)):
            if own is not None:
                self._world.generators[i] = seeding.np_random(int(own))[0]
        self._world.reset(range(self.num_envs))
        return self._world.observe(), self._infos()

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"got {len(seed)} seeds for {self.num_envs} environments")
        return seed

    def step(
        self, actions: IntArray
    ) -> tuple[FloatArray, Rewards, BoolArray, BoolArray, dict[str, Any]]:
        """Move every snake by its action [num_envs]."""
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,):
            raise ValueError(f"actions must have shape ({self.num_envs},), got {actions.shape}")
        rewards = self._world.step(actions)
        terminated = rewards < 0
        truncated = self._out_of_time(terminated)
        features = self._world.observe()
        done = terminated | truncated
        ended = np.flatnonzero(done)
        if not len(ended):
            return features, rewards, terminated, truncated, self._infos()
        final, last = features.copy(), self._infos()
        self._world.reset(ended.tolist())
        features[ended] = self._world.observe(ended)
        infos = self._infos() | {"final_obs": final, "_final_obs": done}
        infos |= {"final_info": last | {"_food": done, "_water": done}, "_final_info": done}
        return features, rewards, terminated, truncated, infos

    def _out_of_time(self, terminated: BoolArray) -> BoolArray:
        if self.max_steps is None:
            return np.zeros(self.num_envs, dtype=np.bool_)
        return (self._world.steps >= self.max_steps) & ~terminated

    def _infos(self) -> dict[str, Any]:
        food, water = self._world.stores.T.copy()
        everyone = self._everyone.copy()
        return {"food": food, "_food": everyone, "water": water, "_water": everyone}

    def observe(self) -> FloatArray:
        """The present features, a fresh array [num_envs, 35]; what to act on after `set_state`."""
        return self._world.observe()

    def get_state(self) -> dict[str, StateArray]:
        """Everything that decides the future, generators included, as plain numeric arrays."""
        return self._world.get_state()

    def set_state(self, state: Mapping[str, StateArray]) -> None:
        """Continue exactly where `get_state` was called."""
        self._world.set_state(state)
