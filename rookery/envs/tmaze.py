"""A corridor that ends in a junction: what was seen at its beginning says which way to turn there.

The task that recurrent policies were first told apart by (Bakker, 2002, "Reinforcement learning
with long short-term memory"). Without a memory no agent does better than chance.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

FORWARD, LEFT, RIGHT = range(3)
"""Actions."""
CORRIDOR, SIGNAL_LEFT, SIGNAL_RIGHT, JUNCTION = range(4)
"""Observations."""

IDLE_COST = 0.01
"""What a step costs that does not lead on."""
PATIENCE = 10
"""Episodes are cut after this many times the steps they need, unless told otherwise."""

CELL_PIXELS = 16
_WALL, _FLOOR, _AGENT, _GOAL = range(4)
_PALETTE: NDArray[np.uint8] = np.array(
    [(24, 26, 34), (96, 100, 112), (106, 190, 98), (226, 168, 62)], np.uint8
)
_LETTERS = "# @*"


class TMazeEnv(gym.Env[np.int64, np.int64]):
    """Go on to the end of the corridor and turn to the side that the first observation named.

        env = gymnasium.make("rookery/TMaze-v0", length=20)
        seen, info = env.reset(seed=0)                # SIGNAL_LEFT or SIGNAL_RIGHT, never again
        seen, reward, terminated, truncated, info = env.step(FORWARD)

    A turn at the junction ends the episode with 1, or with 0 if it is the wrong one. Turning in the
    corridor and going on at the junction lead nowhere and cost a little. `info["right_turn"]` is
    1 or 0 when an episode ends.

    Args:
        length: Steps forward from the beginning to the junction.
        max_steps: Cut episodes after so many steps; None: ten times those that are needed.
        render_mode: None, "rgb_array" or "ansi".
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8}  # noqa: RUF012

    def __init__(
        self, length: int = 20, max_steps: int | None = None, render_mode: str | None = None
    ) -> None:
        if length < 1:
            raise ValueError(f"length must be at least 1, got {length}")
        if max_steps is not None and max_steps <= length:
            raise ValueError(
                f"max_steps must be more than length, {length}, or no episode could be won; "
                f"got {max_steps}"
            )
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        self.length = length
        self.max_steps = PATIENCE * (length + 1) if max_steps is None else max_steps
        self.render_mode = render_mode
        self.observation_space: gym.spaces.Discrete = gym.spaces.Discrete(4)
        self.action_space: gym.spaces.Discrete = gym.spaces.Discrete(3)
        self._goal, self._place, self._turned, self._steps = LEFT, 0, FORWARD, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Begin an episode; either side is as likely."""
        super().reset(seed=seed)
        self._goal = LEFT if self.np_random.integers(2) == 0 else RIGHT
        self._place, self._turned, self._steps = 0, FORWARD, 0
        return np.int64(SIGNAL_LEFT if self._goal == LEFT else SIGNAL_RIGHT), {}

    def step(self, action: np.int64 | int) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Go on, or turn."""
        self._steps += 1
        at_junction = self._place == self.length
        if at_junction and action != FORWARD:
            self._turned = int(action)
            right_turn = float(self._turned == self._goal)
            return self._seen(), right_turn, True, False, {"right_turn": right_turn}
        moves = action == FORWARD and not at_junction
        self._place += int(moves)
        cut = self._steps >= self.max_steps
        info = {"right_turn": 0.0} if cut else {}
        return self._seen(), 0.0 if moves else -IDLE_COST, False, cut, info

    def _seen(self) -> np.int64:
        return np.int64(JUNCTION if self._place == self.length else CORRIDOR)

    def render(self) -> NDArray[np.uint8] | str | None:
        """The maze from above, the corridor from left to right, the goal marked."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode given to the constructor")
            return None
        cells = np.full((5, self.length + 3), _WALL)
        cells[2, 1:-1] = _FLOOR
        cells[1:4, -2] = _FLOOR
        cells[1 if self._goal == LEFT else 3, -2] = _GOAL
        row = {FORWARD: 2, LEFT: 1, RIGHT: 3}[self._turned]
        cells[row, 1 + self._place] = _AGENT
        if self.render_mode == "ansi":
            return "\n".join("".join(_LETTERS[code] for code in line) for line in cells.tolist())
        picture: NDArray[np.uint8] = _PALETTE[cells]
        return picture.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
