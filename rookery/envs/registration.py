"""Tells gymnasium about Rookery's environments, importing none of them."""

from __future__ import annotations

import gymnasium as gym

SNAKE_ID = "rookery/Snake-v0"
TMAZE_ID = "rookery/TMaze-v0"
MAZE_ID = "rookery/Maze-v0"
MARIO = "rookery/SuperMarioBros-"
MARIO_IDS = {
    f"{MARIO}{world}-{stage}-v0": {"world": world, "stage": stage}
    for world in range(1, 9)
    for stage in range(1, 5)
}
MARIO_STEPS = 10_000
"""More than an episode ever has: the clock of the game ends it after some 8,000 frames."""

INFO_KEYS = {MARIO: ("flag_get", "x_max", "world", "stage", "score", "coins")}
"""Numbers in ``info`` that a run records unless it says which, by how ids begin."""


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
    for env_id, kwargs in MARIO_IDS.items():
        gym.register(
            id=env_id,
            entry_point="rookery.envs.mario:MarioEnv",
            max_episode_steps=MARIO_STEPS,
            kwargs=kwargs,
        )


def info_keys_of(env_id: str) -> tuple[str, ...]:
    """What a run in ``env_id`` records of ``info`` unless it says so itself."""
    name = env_id.rpartition(":")[2]
    return next((keys for begin, keys in INFO_KEYS.items() if name.startswith(begin)), ())


def which_exist(name: str) -> str:
    """A phrase like near names, for an id of which there are too many to list."""
    if not name.startswith(MARIO):
        return ""
    first, *_, last = MARIO_IDS
    return f"; there are {first} to {last}: worlds 1 to 8, stages 1 to 4"
