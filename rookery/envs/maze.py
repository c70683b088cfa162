"""A maze of rooms as a gymnasium environment: a long way, and no reward before its end.

The rooms lie in rows and are passed like the lines of a letter, there and back; one door leads from
each to the next, by turns at its far and its near end. Chance does not find the last room: a random
walk reaches the goal of the usual maze in less than one of a million episodes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Cells = NDArray[np.bool_]
View = Literal["position", "smooth", "egocentric"]

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Rows and columns that each action goes: up, right, down, left."""
BLUR = 2.0
"""Deviation of the smooth view, in cells."""
CELL_PIXELS = 16
_COLOURS = np.array(
    [(16, 18, 24), (96, 100, 112), (226, 88, 62), (106, 190, 98)], np.uint8
)  # free, wall, goal, agent
_LETTERS = " #G@"


def maze_walls(rooms: tuple[int, int], room_size: int) -> Cells:
    """``[H, W]`` where the walls of ``rooms`` (rows, columns) are."""
    (rows, columns), pitch = rooms, room_size + 1
    walls = np.zeros((rows * pitch + 1, columns * pitch + 1), np.bool_)
    walls[::pitch] = walls[:, ::pitch] = True
    way = room_order(rooms)
    for number, (here, there) in enumerate(pairwise(way)):
        along = room_size if number % 2 == 0 else 1
        if here[0] == there[0]:
            walls[here[0] * pitch + along, max(here[1], there[1]) * pitch] = False
        else:
            walls[there[0] * pitch, here[1] * pitch + along] = False
    return walls


def room_order(rooms: tuple[int, int]) -> list[tuple[int, int]]:
    """Row and column of each room, in the order of the way."""
    rows, columns = rooms
    return [
        (row, column if row % 2 == 0 else columns - 1 - column)
        for row in range(rows)
        for column in range(columns)
    ]


class MazeEnv(gym.Env[NDArray[np.float32], np.int64]):
    """Find the goal: reward 1 there, which ends the episode, and 0 everywhere else.

        env = gymnasium.make("rookery/Maze-v0")

    Every episode begins in the first corner of the first room; the goal is the middle of the last.
    Against a wall a step stays where it is. `info` holds `room`, the furthest room so far.

    Args:
        rooms: Rows and columns of rooms.
        room_size: Cells along each side of a room.
        max_steps: Truncate an episode after so many steps.
        haste: Share of the reward that is lost if the goal is found in the last step; in
            proportion before it.
        view: position shows row and column, one-hot each; smooth shows them blurred, so that
            places next to each other look alike; egocentric shows walls and goal within `sight`
            cells, for agents with a memory.
        sight: How far egocentric sees.
        render_mode: None, "rgb_array" or "ansi".
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self,
        rooms: tuple[int, int] = (2, 4),
        room_size: int = 3,
        max_steps: int = 100,
        haste: float = 0.0,
        view: View = "position",
        sight: int = 2,
        render_mode: str | None = None,
    ) -> None:
        if len(rooms) != 2 or min(rooms) < 1 or room_size < 1:
            raise ValueError(f"a maze has rooms of some size; got {rooms} of size {room_size}")
        if max_steps < 1 or sight < 1:
            raise ValueError(f"max_steps and sight must be at least 1; got {max_steps}, {sight}")
        if not 0.0 <= haste <= 1.0:
            raise ValueError(f"haste is a share from 0 to 1; got {haste}")
        if view not in get_args(View):
            raise ValueError(f"view must be one of {', '.join(get_args(View))}; got {view!r}")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        rooms = (int(rooms[0]), int(rooms[1]))
        self.walls = maze_walls(rooms, room_size)
        self.way, self.pitch = room_order(rooms), room_size + 1
        (row, column), middle = self.way[-1], (room_size + 1) // 2
        self.goal = (row * self.pitch + middle, column * self.pitch + middle)
        self.max_steps, self.haste = max_steps, haste
        self.view, self.sight = view, sight
        self.render_mode = render_mode
        size = 2 * (2 * sight + 1) ** 2 if view == "egocentric" else sum(self.walls.shape)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (size,), np.float32)
        self.action_space = gym.spaces.Discrete(len(MOVES))
        self.place, self.steps, self.room = (1, 1), 0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin at the start; there is no chance in a maze."""
        super().reset(seed=seed)
        self.place, self.steps, self.room = (1, 1), 0, 0
        return self._show(), {"room": self.room}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Go one cell, if there is no wall."""
        down, right = MOVES[int(action)]
        there = (self.place[0] + down, self.place[1] + right)
        if not self.walls[there]:
            self.place = there
        self.steps += 1
        here = ((self.place[0] - 1) // self.pitch, (self.place[1] - 1) // self.pitch)
        self.room = max(self.room, self.way.index(here))
        found = self.place == self.goal
        late = self.steps >= self.max_steps and not found
        reward = 1.0 - self.haste * self.steps / self.max_steps if found else 0.0
        return self._show(), reward, found, late, {"room": self.room}

    def _show(self) -> NDArray[np.float32]:
        if self.view != "egocentric":
            return np.concatenate(
                [self._along(*axis) for axis in zip(self.place, self.walls.shape, strict=True)]
            )
        goal = np.zeros_like(self.walls)
        goal[self.goal] = True
        return np.concatenate([self._around(self.walls, True), self._around(goal, False)])

    def _along(self, at: int, length: int) -> NDArray[np.float32]:
        """``[length]`` one place of a row or column, blurred where the view is smooth."""
        far = np.abs(np.arange(length, dtype=np.float32) - at)
        near: NDArray[np.float32] = (
            np.exp(-0.5 * (far / BLUR) ** 2)
            if self.view == "smooth"
            else (far == 0).astype(np.float32)
        )
        return near

    def _around(self, cells: Cells, beyond: bool) -> NDArray[np.float32]:
        """``cells`` within sight, row after row; ``beyond`` is what lies outside of the maze."""
        sight = self.sight
        padded = np.pad(cells, sight, constant_values=beyond)
        row, column = self.place
        seen = padded[row : row + 2 * sight + 1, column : column + 2 * sight + 1]
        return seen.astype(np.float32).reshape(-1)

    def render(self) -> NDArray[np.uint8] | str | None:
        """The map, in the form `render_mode` asks for."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode given to the constructor")
            return None
        codes = self.walls.astype(np.int64)
        codes[self.goal] = 2
        codes[self.place] = 3
        if self.render_mode == "ansi":
            return "\n".join("".join(_LETTERS[code] for code in row) for row in codes)
        picture: NDArray[np.uint8] = _COLOURS[codes]
        return picture.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
