"""Super Mario Bros: the game itself under NumPy 2, how episodes end, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import rookery
from rookery.algos.dqn import DQNConfig
from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.core.seeding import seed_of
from rookery.core.spec import Array, ArraySpec
from rookery.envs.conformance import check_vector
from rookery.envs.make import EnvConfig, find_spec, make_env, make_vector
from rookery.envs.mario import ACTION_SETS, MarioEnv
from rookery.envs.process import ProcessVector
from rookery.envs.registration import INFO_KEYS, MARIO, MARIO_IDS
from rookery.envs.serial import SerialVector
from rookery.recipes.settings import settings_from_flags
from rookery.replay.frames import FrameColumn

FIRST = f"{MARIO}1-1-v0"
RECORDED = next(iter(INFO_KEYS.values()))


@pytest.fixture(autouse=True)
def nothing_overflows() -> Iterator[None]:
    """A byte that NumPy made too small for its value is an error in every test."""
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("error", DeprecationWarning)
        yield


def config_of(env_id: str = FIRST, **kwargs: Any) -> EnvConfig:
    return EnvConfig(id=env_id, kwargs=kwargs, num_envs=2)


@pytest.fixture(scope="module")
def shared() -> Iterator[MarioEnv]:
    """One of the first stage, for tests that leave it open; to make one takes half a second."""
    env = MarioEnv(actions="right_jump", noop_max=0, render_mode="rgb_array")
    yield env
    env.close()


def hops(held: int, free: int) -> Iterator[int]:
    """The action `right A` for some steps, then `right` for some, of the set right_jump."""
    while True:
        yield from [1] * held + [0] * free


def play(env: Any, actions: Iterable[int], most: int = 400) -> list[dict[str, Any]]:
    """The info of every step until the episode is over."""
    infos = []
    for _, action in zip(range(most), actions, strict=False):
        _, _, terminated, truncated, info = env.step(action)
        infos.append(info)
        if terminated or truncated:
            break
    return infos


def trace(env: Any, num_steps: int, seed: int | None = 3) -> str:
    """All that an episode shows, as a few letters."""
    rng, seen = np.random.default_rng(0), hashlib.sha256()
    obs, _ = env.reset(seed=seed)
    for _ in range(num_steps):
        seen.update(obs.tobytes())
        obs, reward, terminated, *_ = env.step(int(rng.integers(0, env.action_space.n)))
        seen.update(repr((reward, terminated)).encode())
    return seen.hexdigest()


# What a step is.


def test_what_is_seen(shared: MarioEnv) -> None:
    obs, info = shared.reset(seed=0)
    assert obs.shape == shared.observation_space.shape == (4, 84, 84)
    assert obs.dtype == np.uint8
    assert not obs[:3].any()
    assert obs[3].any()
    assert info["x_pos"] == info["x_max"] == 40
    after, reward, terminated, truncated, info = shared.step(0)
    assert shared.observation_space.contains(after)
    np.testing.assert_array_equal(after[2], obs[3])
    assert type(reward) is float
    assert (terminated, truncated) == (False, False)
    assert set(RECORDED) <= set(info)
    assert all(type(info[key]) in (int, bool) for key in RECORDED)


def test_a_step_is_four_frames_of_the_game(shared: MarioEnv) -> None:
    """Played frame by frame, with rewards added up; the last frame is what is seen."""
    game = shared.game
    for action in (1, 0):
        shared.reset()
        rewards = [shared.step(action)[1] for _ in range(5)]
        seen, picture = shared.step(action)[0][-1], shared.render()
        game.reset()
        byte = {0: 0b1000_0000, 1: 0b1000_0001}[action]
        gained = [game.step(byte)[1] for _ in range(24)]
        assert rewards == [sum(gained[at : at + 4]) for at in range(0, 20, 4)]
        np.testing.assert_array_equal(game.screen, picture)
        grey = cv2.cvtColor(np.ascontiguousarray(game.screen), cv2.COLOR_RGB2GRAY)
        small = cv2.resize(grey, (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(seen, small)
    assert max(rewards) == 4


def test_nothing_that_is_handed_out_changes_later(shared: MarioEnv) -> None:
    obs, _ = shared.reset()
    picture = shared.render()
    assert picture is not None
    before = obs.copy(), picture.copy()
    later = [shared.step(0)[0] for _ in range(12)]
    np.testing.assert_array_equal(obs, before[0])
    np.testing.assert_array_equal(picture, before[1])
    assert not any(np.may_share_memory(one, obs) for one in later)
    assert not np.may_share_memory(later[-1], shared._frames)
    expected = later[-1].copy()
    later[-1][:] = 7
    np.testing.assert_array_equal(shared.step(0)[0][:3], expected[1:])


def test_the_film_shows_the_game_in_colours(shared: MarioEnv) -> None:
    shared.reset()
    picture = shared.render()
    assert picture is not None
    assert picture.shape == (240, 256, 3)
    assert picture.dtype == np.uint8
    red, _, blue = picture[60, 10].astype(int)  # the sky
    assert blue > red + 50
    assert shared.metadata["render_fps"] == 15


@pytest.mark.slow
def test_names_of_actions() -> None:
    expected = {
        "right_jump": ["right", "right A"],
        "right_only": ["NOOP", "right", "right A", "right B", "right A B"],
    }
    counts = {"right_jump": 2, "right_only": 5, "simple": 7, "complex": 12}
    assert set(counts) == set(ACTION_SETS)
    for name in expected:
        env = MarioEnv(actions=name)
        assert env.get_action_meanings() == expected[name]
        env.close()


@pytest.mark.slow
def test_every_action_presses_what_it_says() -> None:
    from nes_py.wrappers import JoypadSpace

    for name, count in (("simple", 7), ("complex", 12)):
        env = make_env(config_of(actions=name)).unwrapped
        assert isinstance(env, MarioEnv)
        assert env.action_space == gym.spaces.Discrete(count)
        bits = JoypadSpace._button_map
        for byte, meaning in zip(env._buttons, env.get_action_meanings(), strict=True):
            assert byte == sum(bits[button] for button in meaning.split())
        env.close()


@pytest.mark.slow
def test_settings_of_what_is_seen() -> None:
    env = make_env(config_of(frame_skip=2, stack=2, screen_size=42), render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    assert obs.shape == (2, 42, 42)
    assert env.metadata["render_fps"] == 30
    env.close()
    colours = make_env(config_of(preprocess=False), render_mode="rgb_array")
    obs, _ = colours.reset(seed=0)
    assert obs.shape == (240, 256, 3)
    np.testing.assert_array_equal(obs, colours.render())
    colours.close()


# The same game each time.


@pytest.mark.slow
def test_a_seed_decides_how_long_an_episode_waits() -> None:
    env = MarioEnv()
    frames = [env.reset(seed=4) and env.game.ram[9]]  # the game's count of frames
    frames += [env.reset() and env.game.ram[9] for _ in range(30)]
    again = env.reset(seed=4) and env.game.ram[9]
    assert again == frames[0]
    assert len(set(frames)) > 10
    assert max(frames) - min(frames) < 30
    env.close()


@pytest.mark.slow
def test_an_episode_follows_from_its_seed_alone() -> None:
    """In another process too, after other episodes, and beside other games."""
    env, other = make_env(config_of()), make_env(config_of(f"{MARIO}2-2-v0"))
    first = trace(env, 60)
    other.reset(seed=1)
    play(env, [3] * 20)
    play(other, [3] * 20)
    assert trace(env, 60) == first
    assert trace(env, 60, seed=5) != first
    code = "from tests.unit.test_mario import *; print(trace(make_env(config_of()), 60))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == first
    assert done.stderr == ""
    env.close()
    other.close()


@pytest.mark.slow
def test_a_fork_plays_on_alike() -> None:
    env = make_env(config_of())
    env.reset(seed=1)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, trace(env, 20, seed=None).encode())
        os._exit(0)
    mine = trace(env, 20, seed=None)
    assert os.read(read, 100).decode() == mine
    assert os.waitpid(pid, 0)[1] == 0
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_many_are_as_one(backend: Any) -> None:
    config = replace(config_of(), backend=backend, num_workers=2, max_episode_steps=25)
    envs = make_vector(config, run_seed=5)
    assert type(envs) is {"serial": SerialVector, "process": ProcessVector}[backend]
    singles = [make_env(config) for _ in range(2)]
    seed_for = lambda index, episode: seed_of(5, "env", index, episode)  # noqa: E731
    assert check_vector(envs, singles, seed_for=seed_for, num_steps=60) == 4
    envs.close()


def test_what_makes_one_can_be_pickled() -> None:
    spec = pickle.loads(pickle.dumps(find_spec(FIRST)))
    assert spec.kwargs == {"world": 1, "stage": 1}
    assert pickle.loads(pickle.dumps(config_of(actions="complex"))).kwargs == {"actions": "complex"}


@pytest.mark.slow
def test_closing_twice_is_closing() -> None:
    env = MarioEnv()
    env.close()
    env.close()
    with pytest.raises(gym.error.ClosedEnvironmentError, match="was closed"):
        env.reset()


# Where bytes are too small.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "held", "free", "furthest"),
    [("1-2", 9, 3, 850), ("4-1", 2, 8, 1200), ("2-2", 9, 3, 1400)],
)
def test_far_from_the_start(stage: str, held: int, free: int, furthest: int) -> None:
    """2-2 is under water."""
    env = make_env(config_of(f"{MARIO}{stage}-v0", actions="right_jump", noop_max=0))
    env.reset(seed=0)
    infos = play(env, hops(held, free))
    assert infos[-1]["x_max"] == max(info["x_pos"] for info in infos) > furthest
    assert [infos[-1]["world"], infos[-1]["stage"]] == [int(part) for part in stage.split("-")]
    assert infos[-1]["ended_by"] == "death"
    env.close()


def test_above_the_screen(shared: MarioEnv) -> None:
    """Mario's height has two bytes, of which the larger is 0 there."""
    _, info = shared.reset()
    height = info["y_pos"]
    shared.game.ram[0xB5], shared.game.ram[0xCE] = 0, 0xE8
    heights = [info["y_pos"] for info in play(shared, [0] * 40)]
    assert max(heights) > 255
    assert heights[-1] == height


def test_left_of_what_was_seen(shared: MarioEnv) -> None:
    shared.reset()
    shared.game.ram[0x86], shared.game.ram[0x071C] = 3, 250
    assert shared.game._left_x_position == 9


# How episodes end.


def test_a_death_terminates(shared: MarioEnv) -> None:
    shared.reset()
    infos, rewards = [], []
    for _ in range(100):
        _, reward, terminated, truncated, info = shared.step(0)
        infos.append(info)
        rewards.append(reward)
        if terminated:
            break
    assert (terminated, truncated) == (True, False)
    assert info["ended_by"] == "death"
    assert not info["flag_get"]
    assert rewards[-1] <= -10
    assert not any("ended_by" in info for info in infos[:-1])
    with pytest.raises(ValueError, match="reset"):
        shared.step(0)
    assert info["x_max"] > 250
    assert shared.reset()[1]["x_max"] == 40


WAY_TO_THE_FLAG = """
5 4 3 4 8 12 2 2 8 9 15 7 11 3 15 2 4 6 6 2 12 3 1 8 4 2 10 3 3 6 8 4 12 1 8 3 6 6 2 5 6 6 4 6 1 6
8 1 10 5 5 10 6 3 6 6 3 9 7 4 1 6 5 1 7 7 4 6 4 3 5 6 4 1 8 5 8 4 27 1 3
"""
"""Of 1-1, found by search: steps with the action `right A`, then with `right`, and so on."""


@pytest.mark.slow
def test_the_flag_terminates() -> None:
    env = make_env(config_of(actions="right_jump", noop_max=0))
    env.reset()
    rewards = []
    for number, steps in enumerate(WAY_TO_THE_FLAG.split()):
        for _ in range(int(steps)):
            _, reward, terminated, truncated, info = env.step((number + 1) % 2)
            rewards.append(reward)
    assert (terminated, truncated, info["ended_by"]) == (True, False, "flag")
    assert info["flag_get"] is True
    assert info["x_max"] == info["x_pos"] == 3161
    assert sum(rewards) == 3029
    env.close()


def run_down(env: MarioEnv, most: int) -> dict[str, Any]:
    """Stand still until the clock has run down."""
    infos = play(env, [0] * most, most)
    return infos[-1] | {"steps": len(infos)}


@pytest.mark.slow
def test_the_clock_ends_an_episode() -> None:
    env = MarioEnv(actions="simple", noop_max=0)
    env.reset()
    for place, digit in enumerate((0, 0, 3)):
        env.game.ram[0x07F8 + place] = digit
    last = run_down(env, 100)
    assert (last["ended_by"], last["time"]) == ("time", 0)
    env.close()


@pytest.mark.long
def test_a_whole_clock_is_less_than_the_limit() -> None:
    env = make_env(config_of(actions="simple", noop_max=0, frame_skip=1))
    env.reset()
    last = run_down(env, 10_100)  # type: ignore[arg-type]
    assert last["ended_by"] == "time"
    assert 7_900 < last["steps"] < 8_100
    env.close()


@pytest.mark.slow
def test_a_limit_truncates() -> None:
    env = make_env(replace(config_of(), max_episode_steps=3))
    env.reset(seed=0)
    assert [env.step(1)[3] for _ in range(3)] == [False, False, True]
    env.close()


# Every stage.


@pytest.mark.long
@pytest.mark.parametrize("env_id", MARIO_IDS)
def test_every_stage_begins_alive(env_id: str) -> None:
    env = make_env(config_of(env_id))
    for seed in range(3):
        _, info = env.reset(seed=seed)
        assert {"world": info["world"], "stage": info["stage"]} == MARIO_IDS[env_id]
        assert info["time"] > 250
        infos = play(env, [0] * 10)
        assert len(infos) == 10
    env.close()


# What is refused.


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            {"id": f"{MARIO}9-1-v0"},
            r"there are rookery/SuperMarioBros-1-1-v0 to rookery/SuperMarioBros-8-4-v0: worlds 1",
        ),
        ({"id": f"{MARIO}1-5-v0"}, "worlds 1 to 8, stages 1 to 4"),
        ({"id": "SuperMarioBros-1-1-v0"}, "did you mean 'rookery/SuperMarioBros-1-1-v0'"),
        ({"kwargs": {"world": 9}}, "no stage 9-1; worlds are 1 to 8, stages 1 to 4"),
        (
            {"kwargs": {"actions": "simpel"}},
            "actions is 'simpel'; it must be one of right_jump, right_only, simple, complex",
        ),
        ({"kwargs": {"actions": ["right"]}}, r"actions is \['right'\]; it must be one of"),
        ({"kwargs": {"frame_skip": 0}}, "env.kwargs.frame_skip is 0; it must be at least 1"),
        ({"kwargs": {"noop_max": -1}}, "env.kwargs.noop_max is -1; it must be at least 0"),
        ({"kwargs": {"preprocess": False, "stack": 2}}, "leave out env.kwargs.stack"),
        ({"kwargs": {"lives": 3}}, "lives.*check env.kwargs"),
        pytest.param(
            {"frame_stack": 4},
            r"stacks frames by itself \(env.kwargs.stack\); leave env.frame_stack",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_there_is_not(chosen: dict[str, Any], message: str) -> None:
    config = EnvConfig(**({"id": FIRST} | chosen))
    for make in (make_env, lambda config: make_vector(config, run_seed=0)):
        with pytest.raises(UserError, match=message) as caught:
            make(config)
        assert "\n" not in str(caught.value)


def test_an_action_that_there_is_not(shared: MarioEnv) -> None:
    shared.reset()
    for action in (-1, 2):
        with pytest.raises(ValueError, match="actions must be 0 to 1"):
            shared.step(action)


def test_a_way_to_draw_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="render_mode must be None or one of"):
        MarioEnv(render_mode="ansi")


def test_a_missing_package_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gym_super_mario_bros", None)
    monkeypatch.delitem(sys.modules, "rookery.envs.mario_emulator", raising=False)
    assert main(["train", FIRST]) == 2
    error = capsys.readouterr().err
    assert 'pip install "rookery[mario]" brings it' in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("what", ["no file", "cut off", "something else", "nothing", "far letters"])
def test_a_rom_that_cannot_be_read(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator would end the process, or play noise."""
    from gym_super_mario_bros._roms import rom_path

    rom = Path(rom_path(False, "vanilla")).read_bytes()
    path = tmp_path / ("größe.nes" if what == "far letters" else "game.nes")
    if what != "no file":
        contents = {"cut off": rom[:-1000], "something else": b"GIF89a" * 9, "nothing": b""}
        path.write_bytes(contents.get(what, rom))
    paths = sys.modules["gym_super_mario_bros._roms.rom_path"]._ROM_PATHS  # type: ignore[attr-defined]
    monkeypatch.setitem(paths[False], "vanilla", str(path))
    remedy = "elsewhere" if what == "far letters" else "pip install --force-reinstall"
    with pytest.raises(UserError, match=remedy) as caught:
        make_env(config_of())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_nobody_who_does_not_play_loads_it() -> None:
    code = f"import sys, rookery; from rookery.envs.make import find_spec; find_spec('{FIRST}')"
    code += "; print([name for name in sys.modules if name.startswith(('gym_', 'nes_', 'cv2'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Runs.


def test_frames_are_stored_once(shared: MarioEnv) -> None:
    column = FrameColumn(ArraySpec((4, 84, 84), np.dtype(np.uint8)), num_chunks=2, chunk_steps=32)
    seen: list[Array] = [shared.reset()[0]]
    seen += [shared.step(0)[0] for _ in range(31)]
    for row, obs in enumerate(seen):
        column.write(np.array([row]), obs[None])
    assert column._num_frames[0] == 4 + 31


def test_what_is_recorded_by_default() -> None:
    def keys(what: str, **flags: str) -> tuple[str, ...]:
        return settings_from_flags(what, flags).metrics.info_keys

    assert keys(FIRST) == keys(f"rookery:{FIRST}") == RECORDED
    assert keys(FIRST, **{"metrics.info_keys": "score"}) == ("score",)
    assert keys("CartPole-v1") == ()


def test_the_recipe_counts_in_steps_as_rpc_rl_counts_actions() -> None:
    algo = settings_from_flags("mario", {}).algo_config
    assert isinstance(algo, DQNConfig)
    assert algo.steps_per_update is not None
    assert algo.target_every * algo.steps_per_update == pytest.approx(10_000, rel=1e-3)
    assert algo.epsilon.mean(4_000_000, 4) == pytest.approx(0.99999975**4_000_000)
    assert algo.epsilon.mean(10_000_000, 4) == 0.1
    assert (algo.reward_min, algo.reward_max, algo.reward_scale) == (None, None, 1.0)


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


TINY: dict[str, Any] = {
    "env": {"num_envs": 2, "max_episode_steps": 12, "kwargs": {"actions": "right_jump"}},
    "eval": {"episodes": 1, "num_envs": 1},
    "metrics": {"every_steps": 16},
}


@pytest.mark.slow
def test_a_run_records_what_was_reached_and_can_be_filmed(tmp_path: Path) -> None:
    ppo = {"rollout_steps": 16, "num_epochs": 1, "num_minibatches": 1}
    run = rookery.train(FIRST, run=str(tmp_path / "run"), ppo=ppo, steps=64, **TINY)
    last = [record for record in records(run.path) if "rollout/info_x_max_mean" in record][-1]
    assert last["rollout/info_x_max_mean"] > 40
    assert (last["rollout/info_world_mean"], last["rollout/info_stage_mean"]) == (1, 1)
    assert last["rollout/info_flag_get_mean"] == last["rollout/info_score_mean"] == 0
    (judged,) = [record for record in records(run.path) if "eval/steps" in record]
    assert judged["eval/info_x_max_mean"] > 40
    assert judged["eval/info_flag_get_mean"] == 0
    film = tmp_path / "film.gif"
    assert main(["record", str(run.path), "--out", str(film), "--episodes", "1"]) == 0
    with Image.open(film) as image:
        assert image.n_frames > 10  # type: ignore[attr-defined]
        assert image.size[0] >= 256
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3).astype(int)
    assert (colours[:, 2] > colours[:, 0] + 50).mean() > 0.3  # the sky


@pytest.mark.slow
def test_replay_learns_of_it_too(tmp_path: Path) -> None:
    dqn = {"learning_starts": 16, "capacity_steps": 1000}
    run = rookery.train(FIRST, algo="dqn", run=str(tmp_path / "run"), dqn=dqn, steps=48, **TINY)
    assert any("rollout/info_x_max_mean" in record for record in records(run.path))


@pytest.mark.long
def test_actors_in_processes_of_their_own(tmp_path: Path) -> None:
    ppo = {"rollout_steps": 16, "num_epochs": 1, "num_minibatches": 1}
    sync = {"num_actors": 2}
    run = rookery.train(
        FIRST, engine="local", run=str(tmp_path / "run"), ppo=ppo, sync=sync, steps=64, **TINY
    )
    assert run.finish.steps >= 64
