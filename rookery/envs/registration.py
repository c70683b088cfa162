"""Tells gymnasium about Rookery's environments, importing none of them."""

from __future__ import annotations

import gymnasium as gym

SNAKE_ID = "rookery/Snake-v0"
TMAZE_ID = "rookery/TMaze-v0"
MAZE_ID = "rookery/Maze-v0"


def register() -> None:
    """Make `gymnasium.make` and `make_vec` know Rookery's ids; calling it again does nothing."""
    if SNAKE_ID in gym.registry:
        return
    gym.register(
        id=SNAKE_ID,
        entry_point="rookery.envs.snake:SnakeEnv",
        vector_entry_point="rookery.envs.snake_vector:SnakeVectorEnv",
    )
    gym.register(id=TMAZE_ID, entry_point="rookery.envs.tmaze:TMazeEnv")
    gym.register(id=MAZE_ID, entry_point="rookery.envs.maze:MazeEnv")
