"""Environments that misbehave on purpose, as ``tests.faults.fault_worlds:name``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Plain(gym.Env[Any, Any]):
    """Ten quiet steps an episode; ``step_secs`` of sleep each."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_secs: float = 0.0) -> None:
        self.step_secs = step_secs
        self.count = 0
        self.total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.step_secs:
            time.sleep(self.step_secs)
        self.count += 1
        self.total += 1
        return np.full(3, 0.5, np.float32), 1.0, self.count >= 10, False, {}


class OfThisHost(Plain):
    """Shows as many numbers as the variable WORLD_SIZE of its host says."""

    def __init__(self) -> None:
        super().__init__()
        size = int(os.environ["WORLD_SIZE"])
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**given)
        return np.zeros(self.observation_space.shape, np.float32), {}  # type: ignore[arg-type]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *rest = super().step(action)
        return np.zeros(self.observation_space.shape, np.float32), *rest  # type: ignore[arg-type,return-value]


class Raises(Plain):
    """Raises at its ``at``-th step."""

    def __init__(self, at: int = 30) -> None:
        super().__init__()
        self.at = at

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.total >= self.at:
            raise ValueError("the pole is on fire")
        return super().step(action)


class HangsInC(Plain):
    """Sleeps in C with every signal blocked, once per ``marker`` file, so no alarm can end it."""

    def __init__(self, marker: str, at: int = 30) -> None:
        super().__init__()
        self.marker = Path(marker)
        self.at = at

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.total >= self.at and not self.marker.exists():
            self.marker.write_text(str(os.getpid()))
            import signal

            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
            time.sleep(3600)
        return super().step(action)


class Marks(Plain):
    """Leaves a file in ``markers`` at its tenth step."""

    def __init__(self, markers: str, step_secs: float = 0.0) -> None:
        super().__init__(step_secs)
        self.markers = Path(markers)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.total == 10:
            (self.markers / f"{os.getpid()}-{id(self)}").touch()
        return super().step(action)
