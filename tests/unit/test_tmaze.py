"""The T-maze: its rules, and that it cannot be won without a memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rookery.core.errors import UserError
from rookery.core.seeding import seed_of
from rookery.envs.conformance import check_vector
from rookery.envs.make import EnvConfig, make_env, make_vector
from rookery.envs.registration import register
from rookery.envs.tmaze import (
    CORRIDOR,
    FORWARD,
    IDLE_COST,
    JUNCTION,
    LEFT,
    RIGHT,
    SIGNAL_LEFT,
    SIGNAL_RIGHT,
    TMazeEnv,
)

ID = "rookery/TMaze-v0"


def play(env: TMazeEnv, seed: int, choose: Callable[[int, int], int]) -> tuple[float, list[int]]:
    """The return of an episode and what was seen; ``choose(signal, seen)`` gives the action."""
    seen = signal = int(env.reset(seed=seed)[0])
    total, all_seen, over = 0.0, [seen], False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(choose(signal, seen))
        seen, total, over = int(obs), total + reward, terminated or truncated
        all_seen.append(seen)
    return total, all_seen


def remembers(signal: int, seen: int) -> int:
    return FORWARD if seen != JUNCTION else LEFT if signal == SIGNAL_LEFT else RIGHT


def test_it_is_a_gymnasium_environment() -> None:
    register()
    check_env(gym.make(ID).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("length", [1, 3, 20])
def test_who_remembers_wins_every_time(length: int) -> None:
    env = TMazeEnv(length)
    signals = set()
    for seed in range(20):
        total, seen = play(env, seed, remembers)
        assert total == 1.0
        assert len(seen) == length + 2
        assert seen[1:-1] == [CORRIDOR] * (length - 1) + [JUNCTION]
        signals.add(seen[0])
    assert signals == {SIGNAL_LEFT, SIGNAL_RIGHT}


@pytest.mark.parametrize("turn", [LEFT, RIGHT])
def test_who_forgets_is_right_half_the_time(turn: int) -> None:
    env = TMazeEnv(3)
    choose = lambda signal, seen: turn if seen == JUNCTION else FORWARD  # noqa: E731
    returns = [play(env, seed, choose)[0] for seed in range(400)]
    assert set(returns) == {0.0, 1.0}
    assert np.mean(returns) == pytest.approx(0.5, abs=0.08)


def test_the_signal_is_gone_after_one_step_even_in_its_place() -> None:
    env = TMazeEnv(3)
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(LEFT)
    assert (obs, reward, terminated, truncated, info) == (CORRIDOR, -IDLE_COST, False, False, {})


def test_going_on_at_the_junction_costs_and_the_last_step_is_a_cut() -> None:
    env = TMazeEnv(2, max_steps=5)
    env.reset(seed=0)
    steps = [env.step(FORWARD) for _ in range(5)]
    assert [step[1] for step in steps] == [0.0, 0.0, *[-IDLE_COST] * 3]
    assert [step[3] for step in steps] == [False] * 4 + [True]
    assert not any(step[2] for step in steps)
    assert steps[-1][4] == {"right_turn": 0.0}
    assert int(steps[-1][0]) == JUNCTION


def test_by_default_there_is_time_for_detours() -> None:
    assert TMazeEnv(20).max_steps == 210


@pytest.mark.parametrize(
    "kwargs", [{"length": 0}, {"length": 4, "max_steps": 4}, {"render_mode": "svg"}]
)
def test_impossible_mazes_are_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="could not be built"):
        make_env(EnvConfig(id=ID, kwargs=kwargs))


def test_it_can_be_drawn() -> None:
    text = TMazeEnv(2, render_mode="ansi")
    text.reset(seed=0)
    text.step(FORWARD)
    assert text.render() in (
        "#####\n###*#\n# @ #\n### #\n#####",
        "#####\n### #\n# @ #\n###*#\n#####",
    )
    picture: Any = TMazeEnv(2, render_mode="rgb_array")
    picture.reset(seed=0)
    assert picture.render().shape == (80, 80, 3)


def test_many_are_as_one() -> None:
    config = EnvConfig(id=ID, kwargs={"length": 3})
    envs = make_vector(config, run_seed=2, num_envs=4)
    singles = [make_env(config) for _ in range(4)]
    seed_for = lambda index, episode: seed_of(2, "env", index, episode)  # noqa: E731
    assert check_vector(envs, singles, seed_for=seed_for, num_steps=100) > 10
