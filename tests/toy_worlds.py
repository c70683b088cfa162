"""Worlds with a known optimum, learned in seconds: what an algorithm must be able to do.

Each is a factory for ``module:name``; all are repeatable from their seed.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Step = tuple[Any, float, bool, bool, dict[str, Any]]

MIRROR_STEPS = 8
RECALL_DELAY = 3
FENCED_STEPS = 6


class Mirror(gym.Env[Any, Any]):
    """A new sign each step, and the action must be the same: at best 1 a step, 8 an episode.

    ``kind`` is the kind of action: discrete, multi_discrete, multi_binary or box.
    """

    def __init__(self, kind: str = "discrete", start: int = 0) -> None:
        self.kind = kind
        self.action_space = {
            "discrete": spaces.Discrete(4, start=start),
            "multi_discrete": spaces.MultiDiscrete([3, 4], start=[start, start]),
            "multi_binary": spaces.MultiBinary(3),
            "box": spaces.Box(-2.0, 3.0, (2, 1), np.float64),
        }[kind]
        size = {"discrete": 4, "multi_discrete": 7, "multi_binary": 3, "box": 2}[kind]
        self.observation_space = spaces.Box(-4.0, 4.0, (size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.action_space.seed(int(self.np_random.integers(2**31)))
        self.left = MIRROR_STEPS
        return self._show(), {}

    def _show(self) -> Any:
        self.sign = self.action_space.sample()
        if isinstance(self.action_space, spaces.Discrete):
            shown = np.eye(4)[self.sign - self.action_space.start]
        elif isinstance(self.action_space, spaces.MultiDiscrete):
            first, second = self.sign - self.action_space.start
            shown = np.concatenate([np.eye(3)[first], np.eye(4)[second]])
        else:
            shown = np.asarray(self.sign).reshape(-1)
        return shown.astype(np.float32)

    def step(self, action: Any) -> Step:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        if self.kind == "box":
            reward = 1.0 - float(np.abs(action - self.sign).mean())
        else:
            reward = float(np.mean(np.asarray(action) == np.asarray(self.sign)))
        self.left -= 1
        return self._show(), reward, self.left == 0, False, {}


class Recall(gym.Env[Any, Any]):
    """A cue in the first observation, asked for some steps later: 1 with memory, 0 without."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.cue, self.time = int(self.np_random.integers(2)), 0
        return np.array([2.0 * self.cue - 1.0, 0.0], np.float32), {}

    def step(self, action: Any) -> Step:
        self.time += 1
        asked = self.time == RECALL_DELAY
        obs = np.array([0.0, float(asked)], np.float32)
        over = self.time > RECALL_DELAY
        right = 1.0 if int(action) == self.cue else -1.0
        return obs, right if over else 0.0, over, False, {}


class Whisper(gym.Env[Any, Any]):
    """What matters is a thousandth of what is observed: 1 a step for who listens, else 0.5."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = MIRROR_STEPS
        return self._show(), {}

    def _show(self) -> Any:
        self.sign = int(self.np_random.integers(2))
        return np.array([1000.0 + self.sign, -500.0], np.float32)

    def step(self, action: Any) -> Step:
        reward = float(int(action) == self.sign)
        self.left -= 1
        return self._show(), reward, self.left == 0, False, {}


class Endless(gym.Env[Any, Any]):
    """1 a step for ever, cut after ``limit`` steps by a time limit or, with ``final``, by its end.

    Nothing tells the time, so with a discount of 0.9 the value is 10 everywhere; whoever takes the
    cut for an end learns the mean of what is left, 4.1.
    """

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, limit: int = 10, final: bool = False) -> None:
        self.limit, self.final = limit, final

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Step:
        self.time += 1
        over = self.time == self.limit
        return np.ones(1, np.float32), 1.0, over and self.final, over and not self.final, {}


class Fenced(gym.Env[Any, Any]):
    """Only two of four doors are open; the other two break the world. The higher one pays 1."""

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(4, start=1)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = FENCED_STEPS
        return self._show()

    def _show(self) -> tuple[Any, dict[str, Any]]:
        self.mask = np.zeros(4, np.int8)
        self.mask[self.np_random.choice(4, 2, replace=False)] = 1
        return self.mask.astype(np.float32), {"open": self.mask}

    def step(self, action: Any) -> Step:
        door = int(action) - 1
        if not self.mask[door]:
            raise ValueError(f"door {door} is closed")
        reward = float(door == np.flatnonzero(self.mask)[-1])
        self.left -= 1
        obs, info = self._show()
        return obs, reward, self.left == 0, False, info


class Assorted(gym.Env[Any, Any]):
    """Observations of every kind at once, with choices that do not count from 0."""

    observation_space = spaces.Dict(
        {
            "place": spaces.Discrete(5, start=-2),
            "pair": spaces.Tuple(
                [
                    spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, 4]])),
                    spaces.MultiBinary((2, 2)),
                ]
            ),
            "speed": spaces.Box(-1.0, 1.0, (2,), np.float64),
        }
    )
    action_space = spaces.MultiDiscrete(
        np.array([[2, 2], [3, 2]]), start=np.array([[1, 0], [5, 2]])
    )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.left = MIRROR_STEPS
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Step:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}
