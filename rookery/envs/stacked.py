"""The last observations of every environment of a vector, stacked.

What gymnasium's ``FrameStackObservation`` does for a single environment, for all rows at once: the
first observation of an episode fills its stack.

Shapes: B environments, S observations a stack.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space

from rookery.core.spec import Array


class StackedVector(gym.vector.VectorWrapper[Any, Any, Any]):
    """Observations ``[B, S, ...]`` of a vector that resets in the step after an end.

    They must be arrays: Box or Discrete, no Dict or Tuple.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], size: int) -> None:
        super().__init__(env)
        self.single_observation_space = batch_space(env.single_observation_space, size)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self._size = size
        self._stack: Array = np.empty(0)
        self._begins = np.zeros(env.num_envs, np.bool_)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin anew in every row."""
        obs, infos = super().reset(seed=seed, options=options)
        self._stack = np.repeat(obs[:, None], self._size, axis=1)
        self._begins = np.zeros(self.num_envs, np.bool_)
        return self._stack, infos

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Step all rows; stacks handed out before stay as they are."""
        obs, reward, terminated, truncated, infos = super().step(actions)
        stack = np.concatenate([self._stack[:, 1:], obs[:, None]], axis=1)
        if self._begins.any():
            stack[self._begins] = obs[self._begins][:, None]
        self._stack, self._begins = stack, terminated | truncated
        return stack, reward, terminated, truncated, infos
