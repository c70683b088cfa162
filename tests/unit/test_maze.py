"""The maze: its rules, its pictures, and that chance does not solve it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rookery.envs.maze import MOVES, MazeEnv
from rookery.envs.registration import register
from tests.mazes import way_out

UP, RIGHT, DOWN, LEFT = range(4)


@pytest.mark.parametrize("view", ["position", "smooth", "egocentric"])
def test_it_keeps_gymnasiums_rules(view: str) -> None:
    register()
    env = gym.make("rookery/Maze-v0", view=view, render_mode="rgb_array")
    check_env(env.unwrapped)


def test_the_goal_is_the_only_reward_and_ends_the_episode() -> None:
    env = MazeEnv()
    env.reset()
    way = way_out(env)
    assert 30 <= len(way) < env.max_steps
    rewards = []
    for action in way:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        assert not truncated
        assert terminated == (reward == 1.0)
    assert rewards == [0.0] * (len(way) - 1) + [1.0]
    assert info["room"] == len(env.way) - 1


def test_walls_stop_and_time_runs_out() -> None:
    env = MazeEnv(max_steps=3)
    first, _ = env.reset()
    assert np.array_equal(env.step(UP)[0], first)
    assert np.array_equal(env.step(LEFT)[0], first)
    obs, reward, terminated, truncated, _ = env.step(RIGHT)
    assert not np.array_equal(obs, first)
    assert (reward, terminated, truncated) == (0.0, False, True)


def test_each_room_has_one_door_to_the_next() -> None:
    env = MazeEnv(rooms=(2, 3), room_size=3, render_mode="ansi")
    env.reset()
    assert env.render() == "\n".join(
        [
            "#############",
            "#@  #       #",
            "#   #   #   #",
            "#       #   #",
            "########### #",
            "#   #       #",
            "# G #   #   #",
            "#       #   #",
            "#############",
        ]
    )


def test_an_egocentric_view_shows_what_is_near() -> None:
    env = MazeEnv(view="egocentric", sight=1)
    shown, _ = env.reset()
    assert shown[:9].reshape(3, 3).tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert not shown[9:].any()
    env.place = (env.goal[0], env.goal[1])
    assert env._show()[9:].reshape(3, 3)[1, 1] == 1.0


def test_haste_takes_from_the_reward_by_the_time_it_took() -> None:
    env = MazeEnv(haste=0.5)
    env.reset()
    way = way_out(env)
    rewards = [env.step(action)[1] for action in way]
    assert sum(rewards) == rewards[-1] == 1.0 - 0.5 * len(way) / env.max_steps


def test_a_smooth_view_shows_near_places_as_near() -> None:
    env = MazeEnv(view="smooth")
    seen = []
    for env.place in ((1, 1), (1, 2), (1, 5), (5, 5)):
        seen.append(env._show())
    apart = [np.linalg.norm(other - seen[0]) for other in seen]
    assert apart == sorted(apart)
    assert apart[1] < 0.5 * apart[2]
    assert seen[0].argmax() == 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"rooms": (0, 3)}, "rooms of some size"),
        ({"max_steps": 0}, "max_steps"),
        ({"view": "map"}, "position, smooth, egocentric"),
        ({"haste": 1.5}, "from 0 to 1"),
        ({"render_mode": "human"}, "render_mode"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        MazeEnv(**wrong)


def test_chance_does_not_find_the_goal() -> None:
    """Of 2,000 random episodes none, and far less than one of a thousand by all possible walks."""
    env = MazeEnv()
    rng = np.random.default_rng(0)
    place = np.ones((2_000, 2), np.int64)
    found = np.zeros(2_000, np.bool_)
    moves = np.array(MOVES)
    for _ in range(env.max_steps):
        there = place + moves[rng.integers(4, size=2_000)]
        free = ~env.walls[there[:, 0], there[:, 1]]
        place = np.where((free & ~found)[:, None], there, place)
        found |= (place == env.goal).all(1)
    assert len(np.unique(place, axis=0)) > 20, "they do walk"
    assert found.sum() == 0
    assert chance_of_success(env) < 1e-6


def chance_of_success(env: MazeEnv) -> float:
    """The odds that a random walk reaches the goal in time, by the odds of each cell."""
    odds = np.zeros(env.walls.shape)
    odds[1, 1] = 1.0
    success = 0.0
    for _ in range(env.max_steps):
        after = np.zeros_like(odds)
        for row, column in np.argwhere(odds > 0):
            for down, right in MOVES:
                there = (row + down, column + right)
                after[(row, column) if env.walls[there] else there] += odds[row, column] / 4
        success += after[env.goal]
        after[env.goal] = 0.0
        odds = after
    return success
