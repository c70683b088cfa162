"""MinAtar and MiniGrid: found, seeded, drawn, and named where they are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import rookery
from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.core.seeding import seed_of
from rookery.envs import extras
from rookery.envs.conformance import check_vector
from rookery.envs.make import EnvConfig, make_env, make_vector
from rookery.envs.spaces import obs_leaves

GAMES = ["Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"]
GRID = "MiniGrid-Empty-5x5-v0"
KEYS = ("image", "direction")


def config_of(env_id: str) -> EnvConfig:
    return EnvConfig(id=env_id, obs_keys=KEYS if env_id.startswith("MiniGrid-") else None)


@pytest.mark.parametrize(
    ("env_id", "package"),
    [("MinAtar/Breakout-v1", "minatar"), (GRID, "minigrid"), ("BabyAI-GoToObj-v0", "minigrid")],
)
def test_a_missing_package_is_named_with_its_extra(
    env_id: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    ours = [known for known in gym.registry if extras.extra_of(known) is not None]
    for known in ours:
        monkeypatch.delitem(gym.registry, known)
    assert main(["train", env_id]) == 2
    error = capsys.readouterr().err
    assert f'pip install "rookery[{package}]" brings it' in error
    assert error.count("\n") == 1


def test_a_game_that_does_not_exist_is_met_with_near_names() -> None:
    with pytest.raises(UserError, match=r"did you mean 'MinAtar/Breakout-v1'"):
        make_env(EnvConfig(id="MinAtar/Breakot-v1"))


OTHERS = [f"MinAtar/{game}-v1" for game in ("Asterix", "Seaquest", "SpaceInvaders")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id",
    [
        *("MinAtar/Breakout-v1", "MinAtar/Freeway-v1", GRID),
        *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS),
        pytest.param("MiniGrid-MultiRoom-N2-S4-v0", marks=pytest.mark.long),
    ],
)
def test_many_are_as_one(env_id: str) -> None:
    config = config_of(env_id)
    envs = make_vector(config, run_seed=5, num_envs=3)
    singles = [make_env(config) for _ in range(3)]
    seed_for = lambda index, episode: seed_of(5, "env", index, episode)  # noqa: E731
    ended = check_vector(envs, singles, seed_for=seed_for, num_steps=300)
    assert ended >= (0 if "Freeway" in env_id else 3)


@pytest.mark.parametrize("game", GAMES)
def test_an_episode_of_a_game_follows_from_its_seed_alone(game: str) -> None:
    """Whatever was played before: random states and the action to stick to are of the episode."""

    def episode(env: Any, action: int) -> list[Any]:
        seen = [env.reset(seed=3)[0]]
        for _ in range(40):
            obs, reward, terminated, *_ = env.step(action)
            seen += [obs, reward, terminated]
        return seen

    kwargs = {"sticky_action_prob": 1.0}  # so that the first action is the one before
    fresh, used = (make_env(EnvConfig(id=f"MinAtar/{game}-v0", kwargs=kwargs)) for _ in range(2))
    used.reset(seed=9)
    game_of: Any = used.unwrapped
    game_of.game.last_action = 3
    for one, other in zip(episode(fresh, 1), episode(used, 1), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_what_only_draws_windows_is_not_loaded_to_play() -> None:
    code = "import rookery, sys; from rookery.envs.extras import register"
    code += "; register('MinAtar/Breakout-v1'); import minatar; print('pandas' in sys.modules)"
    code += "; import seaborn; seaborn.color_palette; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_other_seeds_give_other_games() -> None:
    env = make_env(EnvConfig(id="MinAtar/Freeway-v1"))
    assert not np.array_equal(env.reset(seed=1)[0], env.reset(seed=2)[0])


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["MinAtar/Breakout-v1", GRID])
def test_they_can_be_drawn(env_id: str) -> None:
    env = make_env(config_of(env_id), render_mode="rgb_array")
    env.reset(seed=0)
    picture: Any = env.render()
    assert picture.dtype == np.uint8
    assert picture.shape[0] >= 160
    assert picture.max() > 100


# ---- what the agent sees -----------------------------------------------------------------------


def test_text_is_refused_with_the_flag_that_leaves_it_out() -> None:
    with pytest.raises(UserError, match=r"at 'mission' a MissionSpace.*obs_keys direction,image$"):
        make_vector(EnvConfig(id=GRID), run_seed=0)


def test_without_entries_there_is_nothing_to_leave_out() -> None:
    for space in (spaces.Text(3), spaces.Dict({"only": spaces.Text(3)})):
        with pytest.raises(UserError, match=r"Tuple of these$"):
            obs_leaves(space)


def test_only_the_chosen_entries_are_seen() -> None:
    leaves = make_vector(EnvConfig(id=GRID, obs_keys=("image",)), run_seed=0).obs_leaves
    assert {name: leaf.shape for name, leaf in leaves.items()} == {"image": (7, 7, 3)}


@pytest.mark.parametrize(
    ("env_id", "keys", "message"),
    [
        (GRID, ("imag",), "has no entry 'imag'; did you mean 'image'"),
        (GRID, (), "env.obs_keys is empty"),
        ("CartPole-v1", ("obs",), "CartPole-v1 observes a Box, which has no entries"),
        ("ALE/Pong-v5", ("obs",), "ALE/Pong-v5 has one observation"),
    ],
)
def test_entries_that_are_not_there(env_id: str, keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_env(EnvConfig(id=env_id, obs_keys=keys))


@pytest.mark.parametrize("backend", ["native", "envpool"])
def test_vector_classes_show_all_entries(backend: Any) -> None:
    with pytest.raises(UserError, match=r"env\.obs_keys"):
        make_vector(EnvConfig(id="CartPole-v1", obs_keys=("a",), backend=backend), run_seed=0)


# ---- runs --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize("env_id", ["MinAtar/Breakout-v1", GRID])
def test_they_are_trained_and_a_seed_repeats_a_run(env_id: str, algo: str, tmp_path: Path) -> None:
    def weights(name: str) -> bytes:
        given: dict[str, Any] = {"policy": {"precision": "fp32"}, "eval": {"episodes": 2}}
        if env_id == GRID:
            given["env"] = {"obs_keys": list(KEYS)}
        if algo == "dqn":
            given["dqn"] = {"learning_starts": 100}
        run = rookery.train(env_id, algo=algo, run=tmp_path / name, steps=300, **given)
        return (run.path / "checkpoints" / "latest" / "weights.safetensors").read_bytes()

    assert weights("one") == weights("two")
