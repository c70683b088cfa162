"""Atari: ALE's vector against single environments, lost lives, seeds, and what is refused."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ale_py import roms
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

import rookery
from rookery.cli.explain import all_settings_help
from rookery.core.errors import EnvironmentFault, UserError
from rookery.core.seeding import seed_of
from rookery.core.spec import Array
from rookery.envs.atari import AtariConfig, game_of
from rookery.envs.atari_vector import AtariVector
from rookery.envs.background import BackgroundVector
from rookery.envs.conformance import ConformanceError, check_vector
from rookery.envs.episodes import EpisodeEnvs
from rookery.envs.make import EnvConfig, find_spec, make_env, make_seeded, make_vector
from rookery.envs.process import ProcessVector
from rookery.envs.serial import SerialVector
from rookery.envs.timeout import Deadline
from rookery.envs.transition import BackgroundVectorEnv, StepResult, VectorEnv
from rookery.recipes.settings import config_from_tree, settings_from_flags, settings_from_python

BREAKOUT, PONG, PACMAN = (f"{name}NoFrameskip-v4" for name in ("Breakout", "Pong", "MsPacman"))
"""Five lives and FIRE; no lives; lives, no FIRE, and rewards of 10 and more."""

SAME_START = AtariConfig(noop_max=0)


def config_of(env_id: str = BREAKOUT, **chosen: Any) -> EnvConfig:
    return EnvConfig(id=env_id, **({"num_envs": 2, "atari": SAME_START} | chosen))


def vector_of(env_id: str = BREAKOUT, run_seed: int = 1, **chosen: Any) -> BackgroundVector:
    envs = make_vector(config_of(env_id, **chosen), run_seed=run_seed)
    assert type(envs) is BackgroundVector
    return envs


def actions_for(envs: VectorEnv, seed: int = 0) -> Callable[[], Array]:
    rng = np.random.default_rng(seed)
    return lambda: rng.integers(0, envs.action_leaf.sizes[0], envs.num_envs)


# The same task as gymnasium's wrappers make.


def by_gymnasium(env_id: str, limit: int) -> gym.Env[Any, Any]:
    """Gymnasium's preprocessing and nothing of ours."""
    env = gym.make(env_id, frameskip=1, repeat_action_probability=0.0, disable_env_checker=True)
    stacked = FrameStackObservation(AtariPreprocessing(env, noop_max=0), 4, padding_type="zero")
    return TimeLimit(stacked, limit)


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id",
    [
        *(BREAKOUT, "ALE/SpaceInvaders-v5"),
        *(pytest.param(name, marks=pytest.mark.long) for name in (PONG, PACMAN)),
    ],
)
def test_games_are_those_of_gymnasiums_wrapper(env_id: str) -> None:
    atari = replace(SAME_START, fire_reset=False, sticky=0.0)
    envs = vector_of(env_id, atari=atari, max_episode_steps=110)
    singles = [by_gymnasium(env_id, 110) for _ in range(2)]
    assert singles[0].observation_space.shape == envs.obs_leaves["obs"].shape == (4, 84, 84)
    ended = check_vector(envs, singles, seed_for=lambda *_: None, num_steps=260)
    assert ended >= 4
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "atari", "limit"),
    [
        (BREAKOUT, {}, None),
        ("ALE/Breakout-v5", {"sticky": 0.0, "frame_skip": 3, "max_frames": 199}, None),
        (PONG, {"full_action_space": True, "stack": 2}, 70),
        (PACMAN, {"frame_skip": 1, "stack": 1, "screen_size": 42, "fire_reset": False}, 50),
    ],
)
def test_the_single_environment_is_the_same_task(
    env_id: str, atari: dict[str, Any], limit: int | None
) -> None:
    config = config_of(env_id, atari=replace(SAME_START, **atari), max_episode_steps=limit)
    envs = make_vector(config, run_seed=3)
    singles = [make_env(config) for _ in range(2)]
    ended = check_vector(envs, singles, seed_for=lambda *_: None, num_steps=240)
    assert ended >= 2
    envs.close()


def begin_with_ale_seed(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """Give ALE the seed itself, as its vector does, not one that gymnasium makes of it."""
    game: Any = env.unwrapped

    def seed_game(seed: int | None = None) -> tuple[int, int]:
        game.ale.setInt("random_seed", seed)
        return 0, 0

    game.seed_game = seed_game
    return env


@pytest.mark.slow
@pytest.mark.parametrize("sticky", [None, 0.0])
def test_actions_stick_as_in_the_single_environment(sticky: float | None) -> None:
    config = config_of("ALE/Breakout-v5", num_envs=1)
    other = replace(config, atari=replace(SAME_START, sticky=sticky))
    single = begin_with_ale_seed(make_env(other))
    first = seed_of(5, "env", 0) % (2**31 - 1)

    def check() -> int:
        seeds = {0: first}
        return check_vector(
            make_vector(config, run_seed=5),
            [single],
            seed_for=lambda _, episode: seeds.get(episode),
            num_steps=300,
        )

    if sticky is None:
        assert check() >= 1
    else:
        with pytest.raises(ConformanceError):
            check()


@pytest.mark.parametrize(
    ("env_id", "sticky"), [("ALE/Pong-v5", 0.25), (PONG, 0.0), ("QbertNoFrameskip-v4", 0.0)]
)
def test_actions_stick_as_the_id_says(env_id: str, sticky: float) -> None:
    game = game_of(find_spec(env_id))
    assert game is not None
    assert game.sticky_under(AtariConfig()) == sticky
    assert game.sticky_under(AtariConfig(sticky=0.5)) == 0.5


def test_rewards_stay_raw() -> None:
    envs = vector_of(PACMAN)
    act = actions_for(envs)
    envs.reset()
    rewards = [envs.step(act()).reward for _ in range(110)]
    assert set(np.unique(np.stack(rewards))) >= {0.0, 10.0}
    envs.close()


@pytest.mark.slow
@pytest.mark.parametrize(("env_id", "least"), [(BREAKOUT, 1), (PACMAN, 0)])
def test_games_begin_with_a_random_wait(env_id: str, least: int) -> None:
    config = config_of(env_id, num_envs=1, atari=AtariConfig())
    vector: Any = make_vector(config, run_seed=0)._env  # type: ignore[attr-defined]
    single = make_env(config)
    for env in (vector, single):
        env.reset(seed=4)
        waits = [int(np.squeeze(env.reset()[1]["episode_frame_number"])) for _ in range(40)]
        assert len(set(waits)) > 12
        assert least <= min(waits) <= 5
        assert 24 <= max(waits) <= 29
        env.close()


def test_frames_truncate_and_do_not_terminate() -> None:
    envs = vector_of(atari=replace(SAME_START, max_frames=42), num_envs=1)
    envs.reset()
    for step in range(1, 23):
        out = envs.step(np.zeros(1, np.int64))
        assert out.truncated[0] == out.reset[0] == (step in (11, 22))
        assert not out.terminated[0]
        assert out.valid[0]
    envs.close()


# A lost life.


@pytest.mark.slow
def test_a_lost_life_ends_an_episode_for_the_learner_only() -> None:
    ending = vector_of(PACMAN, atari=replace(SAME_START, life_loss=True), max_episode_steps=500)
    plain = make_vector(config_of(PACMAN, max_episode_steps=500), run_seed=1, info_keys=("lives",))
    act = actions_for(plain)
    for one, other in zip(ending.reset().values(), plain.reset().values(), strict=True):
        np.testing.assert_array_equal(one, other)
    lives, lost_lives, num_over = np.full(2, 3.0), 0, 0
    for _ in range(700):
        actions = act()
        mine, whole = ending.step(actions), plain.step(actions)
        over = whole.terminated | whole.truncated
        lost = (whole.info["lives"] < lives) & ~over
        np.testing.assert_array_equal(mine.obs["obs"], whole.obs["obs"])
        np.testing.assert_array_equal(mine.reward, whole.reward)
        np.testing.assert_array_equal(mine.terminated, whole.terminated | lost)
        np.testing.assert_array_equal(mine.truncated, whole.truncated)
        np.testing.assert_array_equal(mine.reset, over | lost)
        np.testing.assert_array_equal(mine.episode_ended(), over)
        assert whole.whole_ended is None
        assert (mine.final_obs is not None) == bool((over | lost).any())
        if mine.final_obs is not None:
            np.testing.assert_array_equal(mine.final_obs["obs"][lost], whole.obs["obs"][lost])
        if mine.final_obs is not None and whole.final_obs is not None:
            last, expected = mine.final_obs["obs"], whole.final_obs["obs"]
            np.testing.assert_array_equal(last[over], expected[over])
        lives = np.where(over, 3.0, whole.info["lives"])
        lost_lives, num_over = lost_lives + int(lost.sum()), num_over + int(over.sum())
    assert lost_lives >= 3
    assert num_over >= 2
    ending.close()
    plain.close()


def test_lost_lives_need_the_vector() -> None:
    atari = replace(SAME_START, life_loss=True)
    with pytest.raises(UserError, match="life_loss needs env"):
        make_vector(config_of(backend="serial", atari=atari), run_seed=0)


# Whole games, each from its own seed.


def scores(config: EnvConfig, num_envs: int, max_steps: int | None) -> tuple[list[float], Any]:
    envs = EpisodeEnvs(config, seeds=[2**40 + 7, 8, 9], num_envs=num_envs, max_steps=max_steps)
    envs.start()
    steps = np.zeros(num_envs, np.int64)
    while envs.running.any():
        steps = np.where(envs.begins, 0, steps)
        envs.step((7 * envs.episode + steps // 5) % 9)
        steps += 1
    envs.close()
    return envs.returns, envs.lengths


@pytest.mark.slow
@pytest.mark.parametrize("max_steps", [None, 120])
def test_scores_depend_on_seeds_alone(max_steps: int | None) -> None:
    config = config_of("ALE/MsPacman-v5", atari=AtariConfig(), max_episode_steps=300)
    one = scores(config, 1, max_steps)
    assert len(set(one[0])) > 1
    assert scores(replace(config, atari=AtariConfig(life_loss=True)), 3, max_steps) == one
    if max_steps is not None:
        assert one[1] == [120] * 3


def test_evaluation_takes_the_vector_and_whole_games() -> None:
    atari = AtariConfig(life_loss=True)
    envs, waves = make_seeded(config_of(atari=atari), 32, 2, lambda row: row)
    assert not waves
    assert type(envs) is BackgroundVector
    assert (envs.num_envs, envs._tells_lost_lives) == (2, False)
    envs.close()


# Two halves.


def assert_same(one: StepResult, other: StepResult) -> None:
    for name in ("reward", "terminated", "truncated", "valid", "reset"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_array_equal(one.obs["obs"], other.obs["obs"])


@pytest.mark.slow
def test_begun_and_finished_is_stepped() -> None:
    halves = [vector_of(run_seed=seed, max_episode_steps=30) for seed in (1, 2)]
    wholes = [vector_of(run_seed=seed, max_episode_steps=30) for seed in (1, 2)]
    for envs in (*halves, *wholes):
        assert isinstance(envs, BackgroundVectorEnv)
        envs.reset()
    act = actions_for(halves[0])
    for _ in range(70):
        actions = [act(), act()]
        for half, move in zip(halves, actions, strict=True):
            half.begin_step(move)
        for half, whole, move in zip(halves, wholes, actions, strict=True):
            assert_same(half.finish_step(), whole.step(move))
    for envs in (*halves, *wholes):
        envs.close()


def test_halves_in_the_wrong_order_are_refused() -> None:
    envs = vector_of(num_envs=1)
    envs.reset()
    with pytest.raises(RuntimeError, match="after begin_step"):
        envs.finish_step()
    envs.begin_step(np.zeros(1, np.int64))
    for wrong in (lambda: envs.begin_step(np.zeros(1, np.int64)), envs.reset):
        with pytest.raises(RuntimeError, match="a step runs"):
            wrong()
    envs.finish_step()
    envs.reset()
    envs.close()


def test_others_do_not_step_in_the_background() -> None:
    for backend in ("native", "serial"):
        envs = make_vector(EnvConfig(id="CartPole-v1", backend=backend), run_seed=0)  # type: ignore[arg-type]
        assert not isinstance(envs, BackgroundVectorEnv)


# Threads, time, wrong actions, state.


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.mark.slow
def test_threads_are_few_and_gone_when_closed() -> None:
    gc.collect()
    before = threads()
    envs = vector_of()
    envs.reset()
    assert len(threads() - before) == 1
    envs.begin_step(np.zeros(2, np.int64))
    envs.close()
    assert not threads() - before
    envs = vector_of(atari=AtariConfig(num_threads=2))
    assert len(threads() - before) == 2
    envs.close()


def test_a_deadline_holds_around_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = vector_of()
    envs.reset()
    envs._deadline = Deadline(0.05)
    recv = envs._env.recv  # type: ignore[attr-defined]
    monkeypatch.setattr(envs._env, "recv", lambda: (time.sleep(60), recv())[1])
    with pytest.raises(EnvironmentFault, match="did not return from step"):
        envs.step(np.zeros(2, np.int64))
    envs.close()


@pytest.mark.parametrize("action", [-1, 4])
def test_an_action_that_a_game_lacks_does_not_hang(action: int) -> None:
    envs = vector_of(num_envs=1)
    envs.reset()
    with pytest.raises(EnvironmentFault, match="actions must be 0 to 3"):
        envs.step(np.full(1, action))
    envs.close()


def test_the_vector_cannot_be_saved() -> None:
    envs = vector_of(num_envs=1)
    envs.reset()
    assert envs.state_dict() is None
    envs.close()


@pytest.mark.slow
def test_a_run_trains_and_resumes_with_new_episodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = rookery.train(
        PONG,
        run=str(tmp_path / "run"),
        env={"num_envs": 2, "max_episode_steps": 20, "atari": {"screen_size": 42}},
        ppo={"rollout_steps": 16, "num_epochs": 1, "num_minibatches": 1},
        eval={"episodes": 2},
        steps=64,
    )
    assert run.evaluate(episodes=2)["length_mean"] == 20
    assert rookery.resume(run.path, steps=128).finish.steps >= 128
    assert "begins new episodes" in caplog.text


# Which environments are prepared, and what is refused.


def test_the_single_environment_renders() -> None:
    env = make_env(config_of("ALE/Breakout-v5", atari=AtariConfig()), render_mode="rgb_array")
    obs, _ = env.reset(seed=1)
    assert obs.shape == (4, 84, 84)
    assert obs.dtype == np.uint8
    assert not obs[:3].any()
    assert np.asarray(env.render()).shape == (210, 160, 3)
    assert env.metadata["render_fps"] == 15
    env.close()


def test_the_raw_environment_can_be_had() -> None:
    raw = AtariConfig(preprocess=False)
    env = make_env(config_of("ALE/Pong-v5", atari=raw, kwargs={"obs_type": "ram"}))
    assert env.observation_space.shape == (128,)
    envs = make_vector(config_of("ALE/Pong-v5", atari=raw, num_envs=1), run_seed=0)
    assert type(envs) is SerialVector
    assert envs.obs_leaves["obs"].shape == (210, 160, 3)
    wrapped = config_of(atari=AtariConfig(), wrappers=["gymnasium.wrappers:GrayscaleObservation"])
    assert make_env(wrapped).observation_space.shape == (210, 160)
    with pytest.raises(UserError, match=r"always preprocesses \(env.atari\); use env.backend"):
        make_vector(config_of("ALE/Pong-v5", atari=raw, backend="native"), run_seed=0)


@pytest.mark.slow
def test_worker_processes_play_the_same_task() -> None:
    config = config_of(backend="process", num_workers=1, max_episode_steps=40)
    envs = make_vector(config, run_seed=0)
    assert type(envs) is ProcessVector
    assert check_vector(
        envs, [make_env(config) for _ in range(2)], seed_for=lambda *_: None, num_steps=90
    )
    envs.close()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"kwargs": {"frameskip": 2}}, "set env.atari.frame_skip, or env.atari.preprocess=false"),
        ({"kwargs": {"mode": 1}}, "env.kwargs.mode cannot .*; env.atari.preprocess=false gives"),
        ({"frame_stack": 4}, "is stacked by env.atari.stack"),
        ({"action_mask_key": "mask"}, "has no action masks"),
        ({"wrappers": ["gymnasium.wrappers:ClipReward"]}, "env.wrappers is not empty"),
        (
            {"atari": AtariConfig(preprocess=False, life_loss=True)},
            "env.atari.life_loss is set, but env.atari.preprocess is false; set it to false or",
        ),
        ({"id": "CartPole-v1"}, "CartPole-v1 is not one of the ids it prepares"),
        ({"id": "tests.toy_envs:RandomEnv"}, "is not one of the ids it prepares"),
        ({"id": "ALE/Pnog-v5"}, "did you mean 'ALE/Pong-v5'"),
        ({"id": "BreakuotNoFrameskip-v4"}, "did you mean 'BreakoutNoFrameskip-v4'"),
    ],
)
def test_bad_settings_are_refused_in_one_line(chosen: dict[str, Any], message: str) -> None:
    env_id = chosen.pop("id", BREAKOUT)
    for make in (make_env, lambda config: make_vector(config, run_seed=0)):
        with pytest.raises(UserError, match=message) as caught:
            make(config_of(env_id, **chosen))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"sticky": 1.5}, "env.atari.sticky is 1.5; it must be between 0 and 1"),
        ({"sticky": float("nan")}, "env.atari.sticky is nan"),
        ({"noop_max": -1}, "env.atari.noop_max is -1; it must not be negative"),
        ({"frame_skip": 0}, "env.atari.frame_skip is 0; it must be at least 1"),
        ({"num_threads": 0}, "env.atari.num_threads is 0"),
    ],
)
def test_bad_values_are_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        AtariConfig(**chosen)


# Settings.


@pytest.mark.slow
def test_settings_come_from_flags_files_and_python(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("env: {atari: {sticky: 0.1, stack: 2}}\n")
    given = {"config": str(file), "env.atari.stack": "3", "env.atari.life_loss": "true"}
    config = settings_from_flags("ALE/Pong-v5", given)
    expected = AtariConfig(sticky=0.1, stack=3, life_loss=True)
    assert config.env.atari == expected
    assert config_from_tree(config.to_tree()) == config
    assert settings_from_flags("ALE/Pong-v5", {"env.atari.sticky": "none"}).env.atari.sticky is None
    python = settings_from_python("ALE/Pong-v5", {"env": {"atari": {"sticky": 0.25}}})
    assert python.env.atari == AtariConfig(sticky=0.25)
    assert settings_from_python("ALE/Pong-v5", {"env.atari.stack": 1}).env.atari.stack == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"env.atari.stikcy": "0"}, "unknown flag --env.atari.stikcy.*'--env.atari.sticky'"),
        ({"env.atari.sticky": "much"}, "env.atari.sticky: must be a number or null, got 'much'"),
        ({"env.atari.stack": "0"}, "env.atari.stack is 0"),
        ({"env.atari": "{stacks: 2}"}, "env.atari.stacks: unknown setting"),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings_from_flags("ALE/Pong-v5", flags)


def test_wrong_keys_are_refused() -> None:
    for tree, message in (
        ({"atari": {"stacks": 2}}, "env.atari.stacks: unknown setting.*'env.atari.stack'"),
        ({"atari": 3}, "env.atari: must be a mapping of settings, got 3"),
    ):
        with pytest.raises(UserError, match=message):
            settings_from_python("ALE/Pong-v5", {"env": tree})


def test_help_explains_them() -> None:
    config = settings_from_flags("ALE/Pong-v5", {"env.atari.stack": "2"})
    text = all_settings_help(config, "ALE/Pong-v5", prog="rookery train")
    assert "\nenv.atari: How Atari games" in text
    assert "--env.atari.stack 2\n      Frames in one observation" in text


# All games.


def all_ids() -> list[str]:
    find_spec("ALE/Pong-v5")
    return [name for name in gym.registry if name.startswith("ALE/")]


def test_all_bundled_games_are_known_under_both_names() -> None:
    assert len(all_ids()) > 90
    for env_id in all_ids():
        game = game_of(find_spec(env_id))
        assert game is not None
        assert Path(str(roms.get_rom_path(game.rom))).is_file()
    old = [name for name in gym.registry if name.endswith("NoFrameskip-v4")]
    assert len(old) > 50
    assert all(game_of(find_spec(name)) is not None for name in old)
    assert game_of(find_spec("Pong-v4")) is None, "its frame skip is random"


@pytest.mark.parametrize(
    "every", [pytest.param(8, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]
)
def test_all_bundled_games_can_be_played(every: int) -> None:
    for env_id in all_ids()[::every]:
        game = game_of(find_spec(env_id))
        assert game is not None
        envs = AtariVector(game, 1, AtariConfig(), max_steps=9, life_loss=True)
        obs, _ = envs.reset()
        assert obs.shape == (1, 4, 84, 84)
        envs.step(np.zeros(1, np.int64))
        envs.close()
