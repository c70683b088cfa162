"""Environments whose observations take much memory."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Wide(gym.Env[Any, Any]):
    """Shows many numbers; ten steps an episode."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, size: int = 20_000) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._seen(), 1.0, self.count >= 10, False, {}

    def _seen(self) -> Any:
        return np.full(self.observation_space.shape or (), 0.1 * self.count, np.float32)


class Frames(Wide):
    """Shows what Atari games are seen as: four frames of 84x84 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)

    def _seen(self) -> Any:
        return self.np_random.integers(0, 255, (4, 84, 84), np.uint8)
