"""Reward normalisation that forgets nothing and computes everything anew."""

from __future__ import annotations

import math

import numpy as np

from rookery.core.spec import Array


class RewardNormalizer:
    """Keeps every discounted return it has seen; divides by their deviation."""

    def __init__(self, gamma: float, num_envs: int) -> None:
        self.gamma = gamma
        self.running = [0.0] * num_envs
        self.seen: list[float] = []

    def __call__(self, reward: Array, reset: Array, mask: Array) -> Array:
        """Normalised rewards ``[T, B]``."""
        num_steps, num_envs = reward.shape
        for t in range(num_steps):
            for b in range(num_envs):
                if reset[t, b]:
                    self.running[b] = 0.0
                self.running[b] = self.gamma * self.running[b] + float(reward[t, b])
                if mask[t, b]:
                    self.seen.append(self.running[b])
        deviation = math.sqrt(float(np.var(self.seen)) + 1e-8)
        return np.clip(reward / deviation, -10.0, 10.0)
