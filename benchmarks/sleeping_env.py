"""An environment whose step takes a set time and nearly no computing: `sleeping_env:make_env`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.wrappers import TimeLimit


class SleepingEnv(gym.Env[Any, Any]):
    """Sleeps ``step_secs`` at every step, as a remote simulator would; episodes of 200 steps."""

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_secs: float = 0.02) -> None:
        self.step_secs = step_secs
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_secs)
        self.count += 1
        return np.full(8, 0.1, np.float32), 1.0, False, self.count >= 200, {}


class SleepingCartPole(CartPoleEnv):
    """Sleeps ``step_secs`` in every step."""

    def __init__(self, step_secs: float) -> None:
        super().__init__()
        self.step_secs = step_secs

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_secs)
        return super().step(action)


def make_cartpole(step_secs: float = 5e-4) -> gym.Env[Any, Any]:
    """CartPole-v1 that takes its time: long enough for hosts to join."""
    return TimeLimit(SleepingCartPole(step_secs), 500)


class OneSlowEnv(SleepingEnv):
    """Of all that are given the same ``claim``, a file, the one that makes it sleeps ``slower``
    times as long."""

    def __init__(self, claim: str, slower: float = 10.0, step_secs: float = 0.02) -> None:
        super().__init__(step_secs)
        self.claim, self.slower = Path(claim), slower

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.slower != 1.0:  # not when it is made: whoever looks at its spaces never steps
            with contextlib.suppress(FileExistsError):
                self.claim.touch(exist_ok=False)
                self.step_secs *= self.slower
            self.slower = 1.0
        return super().step(action)


def make_env(step_secs: float = 0.02) -> SleepingEnv:
    return SleepingEnv(step_secs)
