"""Snakes in maps of our own making, and where things are in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rookery.envs.snake import SnakeEnv
from rookery.envs.snake_world import EMPTY, FOOD, SNAKE, WALL, WATER

LEFT, DOWN, RIGHT, UP = range(4)
UP_LEFT, RAY_UP, UP_RIGHT, RAY_LEFT, RAY_RIGHT, DOWN_LEFT, RAY_DOWN, DOWN_RIGHT = range(8)

Place = tuple[int, int]


def cell(place: Place) -> int:
    return 40 * place[1] + place[0]


def scene(
    head: Place = (20, 20),
    food: Sequence[Place] = (),
    water: Sequence[Place] = (),
    stores: tuple[int, int] = (100, 100),
    restores: tuple[int, int] = (30, 20),
    heading: int = LEFT,
    earlier: int = LEFT,
    **options: Any,
) -> SnakeEnv:
    """A snake in a map of our own making."""
    env = SnakeEnv(**options)
    env.reset(seed=0)
    state = env.world.get_state()
    back = {LEFT: (1, 0), DOWN: (0, -1), RIGHT: (-1, 0), UP: (0, 1)}
    neck = (head[0] + back[heading][0], head[1] + back[heading][1])
    tail = (neck[0] + back[earlier][0], neck[1] + back[earlier][1])
    cells = state["cells"][0]
    cells[cells != WALL] = EMPTY
    cells[[cell(place) for place in (tail, neck, head)]] = SNAKE
    cells[[cell(place) for place in food]] = FOOD
    cells[[cell(place) for place in water]] = WATER
    state["head"][0], state["heading"][0], state["earlier"][0] = cell(head), heading, earlier
    state["stores"][0], state["restores"][0] = stores, restores
    state["cluster"][0] = state["water"][0] = len(water)
    env.world.set_state(state)
    return env


def places(env: SnakeEnv, content: int) -> set[Place]:
    return {(int(i) % 40, int(i) // 40) for i in np.flatnonzero(env.world.cells[0] == content)}


def head(env: SnakeEnv) -> Place:
    return int(env.world.head[0]) % 40, int(env.world.head[0]) // 40
