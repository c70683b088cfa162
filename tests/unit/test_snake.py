"""Snake as an environment: Gymnasium's contract, rendering and time limits."""

from __future__ import annotations

import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from rookery.envs.registration import register
from rookery.envs.snake import SnakeEnv
from rookery.envs.snake_vector import SnakeVectorEnv
from tests.unit.snake_scenes import DOWN, LEFT, RIGHT, UP, scene

# Gymnasium's contract ---------------------------------------------------------------------------


def test_check_env_passes_without_warnings() -> None:
    register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("rookery/Snake-v0").unwrapped)


def test_register_is_idempotent_and_makes_both_environments() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register()
        register()
    spec = gym.spec("rookery/Snake-v0")
    assert spec.max_episode_steps is None
    envs = gym.make_vec("rookery/Snake-v0", num_envs=3, max_steps=7)
    assert isinstance(envs, SnakeVectorEnv)
    assert envs.max_steps == 7


def test_registration_imports_no_torch() -> None:
    code = "import sys, rookery.envs.registration as r; r.register(); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_spaces_and_dtypes() -> None:
    env = SnakeEnv()
    features, _ = env.reset(seed=0)
    assert env.observation_space.shape == (35,)
    assert features.dtype == np.float32
    assert env.action_space == gym.spaces.Discrete(4)
    envs = SnakeVectorEnv(5)
    assert envs.reset(seed=0)[0] in envs.observation_space
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP


def test_a_step_before_reset_is_refused() -> None:
    with pytest.raises(gym.error.ResetNeeded):
        SnakeEnv().step(0)


@pytest.mark.parametrize("action", [-1, 4])
def test_unknown_actions_are_refused(action: int) -> None:
    with pytest.raises(ValueError, match=r"0\.\.3"):
        scene().step(action)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="max_steps"):
        SnakeEnv(max_steps=0)
    with pytest.raises(ValueError, match="render_mode"):
        SnakeEnv(render_mode="human")
    with pytest.raises(ValueError, match="num_envs"):
        SnakeVectorEnv(0)
    with pytest.raises(ValueError, match="2 seeds for 3"):
        SnakeVectorEnv(3).reset(seed=[1, 2])
    with pytest.raises(ValueError, match="shape"):
        SnakeVectorEnv(3).step(np.zeros(2, dtype=np.int64))


def test_render_rgb_array() -> None:
    picture = scene(head=(5, 7), food=[(9, 2)], render_mode="rgb_array").render()
    assert isinstance(picture, np.ndarray)
    assert picture.shape == (400, 400, 3)
    assert picture.dtype == np.uint8
    colour_at = {
        place: tuple(picture[10 * place[1] + 5, 10 * place[0] + 5])
        for place in [(0, 0), (1, 1), (9, 2), (5, 7), (6, 7)]
    }
    assert len(set(colour_at.values())) == 5


def test_render_ansi() -> None:
    text = scene(head=(5, 7), food=[(9, 2)], water=[(3, 3)], render_mode="ansi").render()
    assert isinstance(text, str)
    lines = text.split("\n")
    assert [len(line) for line in lines] == [40] * 40
    assert lines[0] == "#" * 40
    assert lines[7][5:8] == "@oo"
    assert lines[2][9] == "f"
    assert lines[3][3] == "~"


# Time -------------------------------------------------------------------------------------------


def test_no_step_limit_by_default_and_truncation_by_max_steps() -> None:
    circle = [DOWN, RIGHT, UP, LEFT]
    free, limited = scene(stores=(199, 199)), scene(stores=(199, 199), max_steps=6)
    for i in range(1, 150):
        assert free.step(circle[i % 4])[2:4] == (False, False)
    ends = [limited.step(circle[i % 4])[2:4] for i in range(6)]
    assert ends == [(False, False)] * 5 + [(False, True)]


def test_a_death_on_the_last_step_is_a_death_not_a_truncation() -> None:
    _, reward, terminated, truncated, _ = scene(head=(1, 20), max_steps=1).step(LEFT)
    assert (reward, terminated, truncated) == (-2.0, True, False)
