"""Small environments that can be drawn in few ways, or in none."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Bare(gym.Env[Any, Any]):
    """Counts to ten; it cannot be drawn."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.count = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), float(action), self.count == 10, False, {}

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Human(Bare):
    """Only draws on a screen of its own."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012


class Written(Bare):
    """Only text."""

    metadata = {"render_modes": ["ansi"], "render_fps": 10}  # noqa: RUF012

    def render(self) -> Any:
        return f"\x1b[31mcount\x1b[0m {self.count}\n" + "=" * 10


class Odd(Bare):
    """A picture of odd width and height, grey without a third axis."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def render(self) -> Any:
        picture = np.zeros((33, 21), np.uint8)
        picture[:, : 2 * self.count + 1] = 200
        return picture


class Growing(Odd):
    """A picture that grows."""

    def render(self) -> Any:
        return np.zeros((20 + self.count, 30, 3), np.uint8)


class Broken(Odd):
    """Its render method fails."""

    def render(self) -> Any:
        raise RuntimeError("no paint\nleft")


class Nothing(Odd):
    """Its render method returns nothing."""

    def render(self) -> Any:
        return None


def deaf() -> gym.Env[Any, Any]:
    """A factory that takes no render mode."""
    return Odd()
