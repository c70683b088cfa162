"""envpool as a backend: its steps, seeds and threads; and that its tasks are gymnasium's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import rookery
from rookery.core.errors import EnvironmentFault, UserError
from rookery.core.seeding import seed_of
from rookery.core.spec import Array
from rookery.envs import pooled
from rookery.envs.conformance import check_vector
from rookery.envs.make import EnvConfig, make_env, make_seeded, make_vector
from rookery.envs.native import NativeVector
from rookery.envs.pooled import PooledVector
from rookery.envs.serial import SerialVector
from rookery.envs.stacked import StackedVector
from rookery.envs.timeout import Deadline
from rookery.envs.transition import VectorEnv
from rookery.envs.walker_vector import WalkerVector

WALKER = "BipedalWalker-v3"
HARDCORE = "BipedalWalkerHardcore-v3"
LANDER = "LunarLander-v3"
GLIDER = "LunarLanderContinuous-v3"


def pool_of(env_id: str = WALKER, *, run_seed: int = 0, first_env: int = 0, **chosen: Any) -> Any:
    config = EnvConfig(**({"id": env_id, "num_envs": 4, "backend": "envpool"} | chosen))
    return make_vector(config, run_seed=run_seed, first_env=first_env)


def random_actions(envs: VectorEnv, rng: np.random.Generator) -> Array:
    leaf = envs.action_leaf
    if leaf.sizes:
        return rng.integers(0, leaf.sizes[0], envs.num_envs).astype(leaf.dtype)
    return rng.uniform(-1, 1, (envs.num_envs, *leaf.shape)).astype(np.float32)


def no_actions(envs: VectorEnv, rng: np.random.Generator) -> Array:
    return np.zeros((envs.num_envs, *envs.action_leaf.shape), envs.action_leaf.dtype)


def assert_same_leaves(one: VectorEnv, other: VectorEnv) -> None:
    assert list(one.obs_leaves) == list(other.obs_leaves)
    for mine, theirs in [
        *zip(one.obs_leaves.values(), other.obs_leaves.values(), strict=True),
        (one.action_leaf, other.action_leaf),
    ]:
        assert (mine.kind, mine.shape, mine.dtype) == (theirs.kind, theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(mine.low, theirs.low)
        np.testing.assert_array_equal(mine.high, theirs.high)


# How it steps.


def test_the_step_after_an_end_is_the_reset() -> None:
    envs, other = pool_of(max_episode_steps=20), pool_of(max_episode_steps=20)
    rng = np.random.default_rng(0)
    begun = envs.reset()["obs"]
    np.testing.assert_array_equal(begun, other.reset()["obs"])
    for step in range(1, 62):
        actions = random_actions(envs, rng)
        out = envs.step(actions)
        at = step % 21
        # Whatever is asked for in the step of the reset, it is not done.
        same = other.step(actions if at else -actions)
        np.testing.assert_array_equal(out.obs["obs"], same.obs["obs"])
        assert not out.terminated.any()
        assert (out.truncated == (at == 20)).all()
        assert (out.valid == (at != 0)).all()
        assert (out.reset == (at == 0)).all()
        assert (out.final_obs is not None) == (at == 20)
        if at == 0:
            assert (out.reward == 0).all()
            assert np.abs(out.obs["obs"] - begun).max() < 0.3, "it stands as at the beginning"


def test_a_fall_terminates_and_is_punished() -> None:
    envs = pool_of(num_envs=8)
    envs.reset()
    fallen = np.zeros(8, np.bool_)
    for _ in range(200):
        out = envs.step(no_actions(envs, np.random.default_rng(0)))
        assert not out.truncated.any()
        assert (out.reward[out.terminated] == -100).all()
        fallen |= out.terminated
    assert fallen.all()


@pytest.mark.parametrize(
    ("env_id", "limit"), [(WALKER, 1600), (HARDCORE, 2000), (GLIDER, 1000), (LANDER, 1000)]
)
def test_the_limit_is_that_of_gymnasium(env_id: str, limit: int) -> None:
    envs = pool_of(env_id)
    envs.reset()
    assert envs._env._pool.config["max_episode_steps"] == limit


def test_arrays_are_those_of_gymnasium() -> None:
    for env_id in (*sorted(pooled.FASTER), LANDER):
        envs, serial = pool_of(env_id), pool_of(env_id, backend="serial")
        assert_same_leaves(envs, serial)
        obs, theirs = envs.reset()["obs"], serial.reset()["obs"]
        assert (obs.shape, obs.dtype) == (theirs.shape, theirs.dtype)
        out = envs.step(random_actions(envs, np.random.default_rng(0)))
        assert (out.obs["obs"].dtype, out.reward.dtype) == (np.float32, np.float64)
        assert out.terminated.dtype == out.truncated.dtype == np.bool_


def test_later_steps_leave_earlier_arrays_alone() -> None:
    envs = pool_of(max_episode_steps=30)
    rng = np.random.default_rng(0)
    envs.reset()
    outs = [envs.step(random_actions(envs, rng)) for _ in range(100)]
    kept = [(out.obs["obs"], out.obs["obs"].copy(), out.reward, out.reward.copy()) for out in outs]
    for _ in range(100):
        envs.step(random_actions(envs, rng))
    for obs, obs_then, reward, reward_then in kept:
        np.testing.assert_array_equal(obs, obs_then)
        np.testing.assert_array_equal(reward, reward_then)
    assert len({obs.tobytes() for obs, _, _, _ in kept}) == len(kept)


def episodes(envs: VectorEnv, num_steps: int = 60) -> list[bytes]:
    rng = np.random.default_rng(1)
    seen = [envs.reset()["obs"].tobytes()]
    for _ in range(num_steps):
        out = envs.step(random_actions(envs, rng))
        seen += [out.obs["obs"].tobytes(), out.reward.tobytes()]
    return seen


def test_seeds_decide_the_episodes() -> None:
    envs = pool_of(HARDCORE, run_seed=3, max_episode_steps=25)
    first = episodes(envs)
    assert episodes(envs) == first, "a reset begins with the seed again"
    assert episodes(pool_of(HARDCORE, run_seed=3, max_episode_steps=25)) == first
    for unlike in ({"run_seed": 4}, {"run_seed": 3, "first_env": 4}):
        assert episodes(pool_of(HARDCORE, max_episode_steps=25, **unlike))[0] != first[0]


def test_no_two_rows_of_two_actors_are_alike() -> None:
    obs = [pool_of(run_seed=3, first_env=i, num_envs=32).reset()["obs"] for i in (0, 32)]
    assert len(np.unique(np.concatenate(obs), axis=0)) == 64


def test_the_largest_seed_does_not_overflow() -> None:
    single = make_env(EnvConfig(id=WALKER))
    vector = PooledVector(WALKER, 8, single)
    for seed in (2**31 - 1, 2**31 - 2, 2**31 - 9):
        obs, _ = vector.reset(seed=seed)
        assert len(np.unique(obs, axis=0)) == 8
        assert vector._pool.config["seed"] + 8 <= 2**31, "the last row's seed is 31 bits long, too"
    vector.close()


# Threads and time.


def threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def test_one_thread_pinned_to_no_core_and_gone_when_closed() -> None:
    gc.collect()
    before = threads()
    envs = pool_of(num_envs=8)
    envs.reset()
    config = envs._env._pool.config
    assert (config["num_threads"], config["thread_affinity_offset"]) == (1, -1)
    begun = threads() - before
    assert begun
    for thread in begun:
        assert os.sched_getaffinity(int(thread)) == os.sched_getaffinity(0)
    out = envs.step(no_actions(envs, np.random.default_rng(0)))
    seen = out.obs["obs"].copy()
    envs.reset()
    assert len(threads() - before) == len(begun), "the pool before was let go"
    envs.close()
    assert not begun & threads()
    assert not threads() - before
    np.testing.assert_array_equal(out.obs["obs"], seen)
    envs.close()


def test_a_deadline_holds_around_a_step() -> None:
    before = threads()
    envs = pool_of(HARDCORE, num_envs=256)
    envs.reset()
    envs._deadline = Deadline(1e-4)
    with pytest.raises(EnvironmentFault, match="did not return from step"):
        envs.step(no_actions(envs, np.random.default_rng(0)))
    envs.close()
    gc.collect()
    assert not threads() - before


# A stack of frames.


def test_stacks_are_those_of_single_environments() -> None:
    config = EnvConfig(id="CartPole-v1", max_episode_steps=15, frame_stack=3)
    plain = EnvConfig(id="CartPole-v1", max_episode_steps=15)
    vector: Any = SyncVectorEnv(
        [lambda: make_env(plain)] * 3, autoreset_mode=AutoresetMode.NEXT_STEP
    )
    envs = NativeVector(StackedVector(vector, 3), config, run_seed=5)
    first = seed_of(5, "env", 0)
    ended = check_vector(
        envs,
        [make_env(config) for _ in range(3)],
        seed_for=lambda index, episode: first + index if episode == 0 else None,
        num_steps=100,
    )
    assert ended > 15


def test_frames_of_envpool_are_stacked() -> None:
    chosen = {"run_seed": 2, "max_episode_steps": 20}
    envs, plain = pool_of(HARDCORE, frame_stack=4, **chosen), pool_of(HARDCORE, **chosen)
    serial = pool_of(HARDCORE, frame_stack=4, backend="serial")
    assert_same_leaves(envs, serial)
    obs = plain.reset()["obs"]
    history = [obs] * 4
    np.testing.assert_array_equal(envs.reset()["obs"], np.stack(history, axis=1))
    rng = np.random.default_rng(0)
    for _ in range(50):
        actions = random_actions(envs, rng)
        out, one = envs.step(actions), plain.step(actions)
        obs = one.obs["obs"]
        history = [obs] * 4 if one.reset.all() else [*history[1:], obs]
        np.testing.assert_array_equal(out.obs["obs"], np.stack(history, axis=1))
        np.testing.assert_array_equal(out.reward, one.reward)
    assert type(pool_of(HARDCORE, frame_stack=4, backend="auto")._env) is StackedVector


# The same task as gymnasium's.


REACH = {WALKER: 5, HARDCORE: 5, GLIDER: 1000, LANDER: 1000}
"""How strong the push is, in each direction, with which an episode begins."""
SPEEDS = {WALKER: [2], HARDCORE: [2], GLIDER: [2, 3], LANDER: [2, 3]}
"""The columns of the first observation that show it."""
BODY = {WALKER: 14, HARDCORE: 14, GLIDER: 6, LANDER: 6}
"""How many columns are about the body alone; the others know of the ground, which is random."""


class Pushed(np.random.Generator):
    """Draws as ever, but the first push is ``push``."""

    push: Iterator[float]
    reach: int

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        if (low, high) == (-self.reach, self.reach):
            return next(self.push)
        return super().uniform(low, high, size)


def pushed(env_id: str, push: Sequence[float], seed: int = 0) -> tuple[gym.Env[Any, Any], Array]:
    """gymnasium's environment that begins with this push, and its first observation."""
    env = gym.make(env_id).unwrapped
    generator = Pushed(np.random.PCG64(seed))
    generator.push, generator.reach = iter(map(float, push)), REACH[env_id]
    env.np_random = generator
    return env, env.reset()[0]


def pushes_of(env_id: str, first: Array) -> Array:
    """The pushes ``[B, directions]`` that gave these first observations, read off the speeds."""
    columns, reach = SPEEDS[env_id], REACH[env_id]
    slow, fast = (pushed(env_id, [end] * len(columns))[1][columns] for end in (-reach, reach))
    return reach * (2 * (first[:, columns] - slow) / (fast - slow) - 1)


def begin_alike(env_id: str, envs: VectorEnv) -> Callable[[Array], tuple[Array, Array]]:
    """Begin in ``envs`` and, with the same pushes, in gymnasium's; returns how all are stepped."""
    first = envs.reset()["obs"]
    begun = [pushed(env_id, push, i) for i, push in enumerate(pushes_of(env_id, first))]
    body = slice(0, BODY[env_id])
    np.testing.assert_allclose(first[:, body], [obs[body] for _, obs in begun], atol=1e-4)
    singles = [env for env, _ in begun]

    def step(actions: Array) -> tuple[Array, Array]:
        """How far the bodies ``[B, columns]`` and the rewards ``[B]`` are from gymnasium's."""
        out = envs.step(actions)
        stepped = [env.step(move) for env, move in zip(singles, actions, strict=True)]
        obs = np.stack([row[0] for row in stepped])
        return (out.obs["obs"] - obs)[:, body], out.reward - [row[1] for row in stepped]

    return step


@pytest.mark.parametrize("env_id", list(REACH))
def test_episodes_begin_with_gymnasiums_push(env_id: str) -> None:
    pushes = pushes_of(env_id, pool_of(env_id, num_envs=1000).reset()["obs"])
    evenly = np.linspace(-REACH[env_id], REACH[env_id], 1000)
    for column in pushes.T:
        assert np.abs(column).max() < 1.001 * REACH[env_id]
        assert distance(column, evenly) < 0.07
    if pushes.shape[1] > 1:
        assert abs(np.corrcoef(pushes.T)[0, 1]) < 0.15


@pytest.mark.parametrize("env_id", list(REACH))
def test_bodies_move_alike(env_id: str) -> None:
    # Where the ground is level or far away, push and actions decide the way; only the engines of a
    # lander scatter. A foot's touch may magnify the last bits, so most ways are compared, not all.
    envs = pool_of(env_id, num_envs=12)
    act = random_actions if env_id in (WALKER, HARDCORE) else no_actions
    rng = np.random.default_rng(0)
    step = begin_alike(env_id, envs)
    for _ in range(20):
        body, reward = step(act(envs, rng))
        assert np.median(np.abs(body).max(axis=1)) < 1e-3
        assert np.median(np.abs(reward)) < 1e-2


@pytest.mark.parametrize(
    ("env_id", "action"),
    [
        *((LANDER, action) for action in (1, 2, 3)),
        *((GLIDER, action) for action in ((1, 0), (0.2, 0), (0, 1), (0, -0.7), (0, 0.4))),
    ],
)
def test_engines_push_alike(env_id: str, action: Any) -> None:
    num_envs = 64
    envs = pool_of(env_id, num_envs=num_envs)
    actions = np.repeat(np.array([action], envs.action_leaf.dtype), num_envs, axis=0)
    step = begin_alike(env_id, envs)
    for _ in range(20):
        body, _ = step(actions)
    # Each firing scatters, but evenly to both sides.
    error = body.std(axis=0) / np.sqrt(num_envs)
    assert (np.abs(body.mean(axis=0)) < 4.5 * error + 1e-4).all()


def lander_shaping(obs: Array) -> Array:
    """The potential whose change is the lander's reward, apart from its fuel."""
    x, y, vx, vy, angle, _, left, right = obs.astype(np.float64).T
    return -100 * (np.hypot(x, y) + np.hypot(vx, vy) + np.abs(angle)) + 10 * (left + right)


def fuel(actions: Array) -> Array:
    if actions.ndim == 1:
        return np.choose(actions, [0.0, 0.03, 0.3, 0.03])
    main, side = actions.astype(np.float64).T
    burnt = np.where(main > 0, (np.clip(main, 0, 1) + 1) / 2, 0.0) * 0.3
    return burnt + np.where(np.abs(side) > 0.5, np.clip(np.abs(side), 0.5, 1), 0.0) * 0.03


@pytest.mark.parametrize("backend", ["envpool", "serial"])
@pytest.mark.parametrize("env_id", [GLIDER, LANDER])
def test_landers_are_rewarded_alike(env_id: str, backend: str) -> None:
    envs = pool_of(env_id, backend=backend, num_envs=8)
    rng = np.random.default_rng(0)
    shaping, num_ended = lander_shaping(envs.reset()["obs"]), 0
    for _ in range(300):
        actions = random_actions(envs, rng)
        out = envs.step(actions)
        after = lander_shaping(out.obs["obs"])
        running = out.valid & ~out.terminated & ~out.truncated
        expected = after - shaping - fuel(actions)
        np.testing.assert_allclose(out.reward[running], expected[running], atol=1e-3)
        assert (np.abs(out.reward[out.terminated]) == 100).all()
        num_ended += int(out.terminated.sum())
        shaping = after
    assert num_ended > 8


@dataclass(frozen=True)
class Played:
    """The first episode of every row."""

    first: Array
    returns: Array
    lengths: Array


def play(envs: VectorEnv, act: Callable[[VectorEnv, np.random.Generator], Array]) -> Played:
    rng = np.random.default_rng(2)
    first = envs.reset()["obs"].copy()
    playing = np.ones(envs.num_envs, np.bool_)
    returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs)
    while playing.any():
        out = envs.step(act(envs, rng))
        returns += out.reward * playing
        lengths += playing
        playing &= ~(out.terminated | out.truncated)
    envs.close()
    return Played(first, returns, lengths)


def distance(one: Array, other: Array) -> float:
    """Kolmogorov and Smirnov's: the largest difference of two distribution functions."""
    at = np.concatenate([one, other])
    below = [np.searchsorted(np.sort(x), at, "right") / len(x) for x in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


@pytest.mark.slow
@pytest.mark.parametrize("act", [no_actions, random_actions])
@pytest.mark.parametrize(
    ("env_id", "num_envs", "limit"),
    [(WALKER, 20, 125), (HARDCORE, 20, 125), (GLIDER, 80, 150), (LANDER, 80, 150)],
)
def test_episodes_are_alike(
    env_id: str, num_envs: int, limit: int, act: Callable[[VectorEnv, np.random.Generator], Array]
) -> None:
    chosen = {"run_seed": 1, "num_envs": num_envs, "max_episode_steps": limit}
    mine, theirs = (
        play(pool_of(env_id, backend=backend, **chosen), act) for backend in ("envpool", "serial")
    )
    # Equal distributions are farther apart than this once in 5,000 times; the seeds are fixed.
    far = 2.15 * np.sqrt(2 / num_envs)
    assert distance(mine.returns, theirs.returns) < far
    assert distance(mine.lengths, theirs.lengths) < far
    for column in range(mine.first.shape[1]):
        # A value that is the same in all episodes differs in its last bit.
        one, other = (played.first[:, column].round(5) for played in (mine, theirs))
        assert distance(one, other) < far
    for one, other in ((mine.returns, theirs.returns), (mine.lengths, theirs.lengths)):
        error = np.sqrt((one.var() + other.var()) / num_envs)
        assert abs(one.mean() - other.mean()) < 4 * error + 1e-9


# When it is taken, and when it is refused.


@pytest.mark.slow
def test_auto_takes_it_to_train_and_never_to_evaluate() -> None:
    for env_id in pooled.FASTER:
        assert type(pool_of(env_id, backend="auto")._env) is PooledVector
        for backend in ("auto", "envpool"):
            config = EnvConfig(id=env_id, backend=backend)  # type: ignore[arg-type]
            envs, _ = make_seeded(config, 2, 2, lambda row: row)
            assert type(envs) is SerialVector
    assert type(pool_of("CartPole-v1", backend="auto")._env) is not PooledVector
    assert type(pool_of(LANDER, backend="auto")) is SerialVector
    for backend in ("serial", "process"):
        envs = pool_of(backend=backend)
        assert type(envs) is not NativeVector
        envs.close()


def test_auto_does_without_it_where_it_would_be_another_task() -> None:
    assert type(pool_of(backend="auto", kwargs={"hardcore": True})._env) is WalkerVector
    wrapper = "gymnasium.wrappers:ClipReward"
    clipped = {"wrapper": wrapper, "kwargs": {"min_reward": -1.0}}
    assert type(pool_of(backend="auto", wrappers=[clipped])) is SerialVector


def test_auto_does_without_it_where_the_id_is_not_gymnasiums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = gym.envs.registration.EnvSpec(id=WALKER, entry_point="tests.toy_envs:RandomEnv")
    monkeypatch.setitem(gym.registry, WALKER, mine)
    assert type(pool_of(backend="auto")) is SerialVector


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"id": "rookery/Snake-v0"}, "envpool has no rookery/Snake-v0.*use env.backend=auto"),
        ({"id": "BipedalWalker-v33"}, "gymnasium knows no such environment.*BipedalWalker-v3"),
        ({"id": "tests.toy_envs:RandomEnv"}, "envpool has no tests.toy_envs:RandomEnv"),
        ({"id": "Blackjack-v1"}, "the observations of envpool's Blackjack-v1 are"),
        ({"wrappers": ["gymnasium.wrappers:ClipReward"]}, "takes no env.wrappers; use"),
        ({"kwargs": {"hardcore": True}}, "takes no env.kwargs; use"),
        ({"action_mask_key": "mask"}, "gives no action masks"),
    ],
)
def test_it_is_refused_in_one_line(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        pool_of(**({"env_id": chosen.pop("id", WALKER)} | chosen))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_missing_package_is_named() -> None:
    code = (
        "import sys; sys.modules['envpool'] = None\n"
        "from rookery.cli.main import main\n"
        f"sys.exit(main(['train', '{WALKER}', '--env.backend', 'envpool', '--steps', '64']))"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 2
    said = child.stderr.strip().splitlines()
    assert len(said) == 1
    assert "env.backend=envpool: " in said[0]
    assert 'pip install "rookery[envpool]"' in said[0]


def test_auto_does_without_a_package_that_is_missing_or_broken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert type(pool_of(backend="auto")._env) is WalkerVector
    assert not caplog.records
    monkeypatch.setattr(pooled, "installed", lambda: True)
    assert type(pool_of(backend="auto")._env) is WalkerVector
    assert "stepping gymnasium's own" in caplog.text


@pytest.mark.slow
def test_a_run_trains_with_it_and_resumes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = rookery.train(
        WALKER,
        run=str(tmp_path / "run"),
        env={"backend": "envpool", "num_envs": 4, "max_episode_steps": 40},
        policy={"hidden": [8]},
        ppo={"rollout_steps": 32, "num_epochs": 1, "num_minibatches": 1},
        eval={"episodes": 2, "every_steps": 500},
        steps=1000,
        seed=3,
    )
    assert run.finish.steps >= 1000
    assert run.evaluate(episodes=2)["length_mean"] == 40
    resumed = rookery.resume(run.path, steps=2000)
    assert resumed.finish.steps >= 2000
    assert "begins new episodes" in caplog.text
