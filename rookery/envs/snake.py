"""Snake as a gymnasium environment: stay alive on a 40x40 map by finding food and water."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rookery.envs.snake_world import (
    DISTANCE_SCALE,
    EMPTY,
    FOOD,
    NOTHING_SEEN,
    NUM_ACTIONS,
    NUM_FEATURES,
    SIZE,
    SNAKE,
    STORE_CAP,
    STORE_FEATURES,
    WALL,
    WATER,
    FloatArray,
    SnakeWorld,
)

CELL_PIXELS = 10
_HEAD = SNAKE + 1  # a drawing code of its own
_COLOURS = {
    EMPTY: (16, 18, 24),
    FOOD: (226, 88, 62),
    WATER: (58, 134, 255),
    WALL: (96, 100, 112),
    SNAKE: (106, 190, 98),
    _HEAD: (196, 240, 160),
}
_LETTERS = {
    EMPTY: " ",
    FOOD: "f",
    WATER: "~",
    WALL: "#",
    SNAKE: "o",
    _HEAD: "@",
}
_PALETTE: NDArray[np.uint8] = np.array(
    [_COLOURS[code] for code in range(_HEAD + 1)], dtype=np.uint8
)


def observation_space() -> gym.spaces.Box[np.float32]:
    """35 features: 8 rays each to food, water, wall and own body, the two stores, one reserved."""
    low = np.full(NUM_FEATURES, NOTHING_SEEN, dtype=np.float32)
    high = np.full(NUM_FEATURES, np.hypot(SIZE, SIZE) * DISTANCE_SCALE, dtype=np.float32)
    low[STORE_FEATURES] = -1.0 / STORE_CAP  # the step that starves a snake ends at -1
    high[STORE_FEATURES] = 1.0
    low[STORE_FEATURES.stop :] = 0.0
    high[STORE_FEATURES.stop :] = 1.0
    return gym.spaces.Box(low, high, dtype=np.float32)


def action_space() -> gym.spaces.Discrete:
    """Absolute directions: 0 is -x, 1 is +y, 2 is +x, 3 is -y."""
    return gym.spaces.Discrete(NUM_ACTIONS)


def check_max_steps(max_steps: int | None) -> int | None:
    """Refuse a step limit that no episode could start under."""
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, or None for no limit; got {max_steps}")
    return max_steps


class SnakeEnv(gym.Env[FloatArray, np.int64]):
    """One snake. Reward is 0 while it lives and -2 when it dies, -4 if both stores run out at once.

        env = gymnasium.make("rookery/Snake-v0")
        features, info = env.reset(seed=0)
        features, reward, terminated, truncated, info = env.step(env.action_space.sample())

    `info` holds the stores, `food` and `water`. The rules are those of `SnakeWorld`.

    Args:
        max_steps: Truncate an episode after so many steps; None for no limit.
        render_mode: None, "rgb_array" (400x400 pixels) or "ansi" (40 lines of text).
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, max_steps: int | None = None, render_mode: str | None = None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        self.max_steps = check_max_steps(max_steps)
        self.render_mode = render_mode
        self.observation_space: gym.spaces.Box[np.float32] = observation_space()
        self.action_space = action_space()
        self._world: SnakeWorld | None = None  # built by the first reset, which brings the seed

    @property
    def world(self) -> SnakeWorld:
        """The world of this one snake, to look at."""
        if self._world is None:
            raise gym.error.ResetNeeded("call reset() before using the snake")
        return self._world

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Start an episode; without a seed the generator goes on where it was."""
        super().reset(seed=seed)
        if self._world is None:
            self._world = SnakeWorld([self.np_random])
        self._world.generators[0] = self.np_random
        self._world.reset([0])
        return self._world.observe()[0], self._info()

    def step(self, action: np.int64 | int) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Move by one cell."""
        world = self.world
        reward = float(world.step(np.array([action]))[0])
        terminated = reward < 0
        out_of_time = self.max_steps is not None and bool(world.steps[0] >= self.max_steps)
        return world.observe()[0], reward, terminated, out_of_time and not terminated, self._info()

    def _info(self) -> dict[str, Any]:
        food, water = self.world.stores[0].tolist()
        return {"food": food, "water": water}

    def render(self) -> NDArray[np.uint8] | str | None:
        """The map with row y = 0 on top, in the form `render_mode` asks for."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode given to the constructor")
            return None
        codes = self.world.cells[0].reshape(SIZE, SIZE).copy()
        codes.flat[self.world.head[0]] = _HEAD
        if self.render_mode == "ansi":
            return "\n".join("".join(_LETTERS[code] for code in row) for row in codes.tolist())
        picture: NDArray[np.uint8] = _PALETTE[codes]
        return picture.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)


LOW_STORE = 0.4
"""Below this share of a full store a snake does well to look for more."""
CARE = 0.01
"""What an empty store costs a step, beside a death's 2."""


def with_care(reward: FloatArray, obs: Mapping[str, FloatArray]) -> FloatArray:
    """Rewards to learn from that also cost a little wherever a store runs low.

    Deaths are rare once a snake is good, so they alone teach slowly; low stores, which lead to most
    of them, are not. For ``ppo.shape_reward``: ``reward`` [T, B], ``obs["obs"]`` [T, B, 35].
    """
    lack = np.maximum(1.0 - obs["obs"][..., STORE_FEATURES] / LOW_STORE, 0.0)
    shaped: FloatArray = reward - CARE * (lack**2).sum(-1)
    return shaped
