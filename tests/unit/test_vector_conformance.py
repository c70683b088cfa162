"""Every backend against a plain loop over single environments; and saving and resuming them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core.errors import UserError
from rookery.core.seeding import seed_of
from rookery.core.spec import ACTION_MASK, Array, Arrays
from rookery.envs import episode_log
from rookery.envs.conformance import ConformanceError, check_vector, sample_actions
from rookery.envs.make import EnvConfig, make_env, make_vector
from rookery.envs.native import NativeVector
from rookery.envs.serial import SerialVector
from rookery.envs.transition import StepResult, VectorEnv
from tests.toy_envs import MaskedEnv, RandomEnv

TOY = "tests.toy_envs:RandomEnv"
MASKED = "tests.toy_envs:MaskedEnv"


def seeds(run_seed: int, first_env: int = 0) -> Callable[[int, int], int]:
    """The episodes of the serial and the process backend."""
    return lambda index, episode: seed_of(run_seed, "env", first_env + index, episode)


def first_seeds(run_seed: int) -> Callable[[int, int], int | None]:
    """The episodes of a native vector: seeded once, then continued."""
    first = seed_of(run_seed, "env", 0)
    return lambda index, episode: first + index if episode == 0 else None


def sync_native(
    mode: AutoresetMode, config: EnvConfig, num_envs: int, *, copy: bool = True, run_seed: int = 0
) -> NativeVector:
    vector: Any = SyncVectorEnv(
        [lambda: make_env(config)] * num_envs, copy=copy, autoreset_mode=mode
    )
    return NativeVector(vector, config, run_seed=run_seed, info_keys=("score",))


# Backends against the plain loop.


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    space_seed=st.integers(0, 2**31),
    run_seed=st.integers(0, 2**31),
    longest=st.integers(1, 9),
    limit=st.sampled_from([None, 1, 4]),
    num_envs=st.integers(1, 4),
)
def test_serial(
    space_seed: int, run_seed: int, longest: int, limit: int | None, num_envs: int
) -> None:
    config = EnvConfig(
        id=TOY,
        kwargs={"space_seed": space_seed, "longest": longest},
        max_episode_steps=limit,
        backend="serial",
    )
    envs = make_vector(config, run_seed=run_seed, first_env=3, num_envs=num_envs)
    singles = [make_env(config) for _ in range(num_envs)]
    ended = check_vector(envs, singles, seed_for=seeds(run_seed, 3), num_steps=25)
    assert ended >= 2 * num_envs


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(AutoresetMode))
@settings(max_examples=10, deadline=None)
@given(
    space_seed=st.integers(0, 2**31),
    run_seed=st.integers(0, 2**31),
    longest=st.integers(1, 9),
    num_envs=st.integers(1, 4),
    copy=st.booleans(),
)
def test_native_in_every_autoreset_mode(
    mode: AutoresetMode, space_seed: int, run_seed: int, longest: int, num_envs: int, copy: bool
) -> None:
    config = EnvConfig(id=TOY, kwargs={"space_seed": space_seed, "longest": longest})
    envs = sync_native(mode, config, num_envs, copy=copy, run_seed=run_seed)
    singles = [make_env(config) for _ in range(num_envs)]
    ended = check_vector(envs, singles, seed_for=first_seeds(run_seed), num_steps=25)
    assert ended >= num_envs


@pytest.mark.slow
@pytest.mark.parametrize(("space_seed", "num_envs"), [(1, 1), (2, 3), (12, 5), (8, 2)])
def test_process(space_seed: int, num_envs: int) -> None:
    config = EnvConfig(id=TOY, kwargs={"space_seed": space_seed}, backend="process")
    envs = make_vector(config, run_seed=4, first_env=2, num_envs=num_envs)
    try:
        singles = [make_env(config) for _ in range(num_envs)]
        assert check_vector(envs, singles, seed_for=seeds(4, 2), num_steps=60) > num_envs
        serial = make_vector(replace(config, backend="serial"), run_seed=4, num_envs=num_envs)
        assert_same_leaves(envs, serial)
    finally:
        envs.close()


def assert_same_leaves(first: VectorEnv, second: VectorEnv) -> None:
    for one, other in [
        *((first.obs_leaves[name], second.obs_leaves[name]) for name in second.obs_leaves),
        (first.action_leaf, second.action_leaf),
    ]:
        assert (one.kind, one.shape, one.dtype, one.sizes) == (
            other.kind,
            other.shape,
            other.dtype,
            other.sizes,
        )
        for side in ("low", "high"):
            np.testing.assert_equal(getattr(one, side), getattr(other, side))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_real_environment(backend: Any) -> None:
    config = EnvConfig(id="LunarLander-v3", max_episode_steps=70, backend=backend)
    envs = make_vector(config, run_seed=1, num_envs=3)
    singles = [make_env(config) for _ in range(3)]
    assert check_vector(envs, singles, seed_for=seeds(1), num_steps=200) >= 6
    envs.close()


def test_snake_native() -> None:
    config = EnvConfig(id="rookery/Snake-v0", backend="native")
    envs = make_vector(config, run_seed=3, num_envs=4)
    singles = [make_env(config) for _ in range(4)]
    assert check_vector(envs, singles, seed_for=first_seeds(3), num_steps=150) > 4


class MirroredCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """A single CartPole that begins each episode where row ``index`` of a vector one stands."""

    def __init__(self, vector: CartPoleVectorEnv, index: int, limit: int) -> None:
        super().__init__(gym.make("CartPole-v1", max_episode_steps=limit))
        self._vector, self._index = vector, index

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**kwargs)
        states: Any = self._vector.state
        single: Any = self.unwrapped
        single.state = states[:, self._index].copy()
        return single.state.astype(np.float32), {}


def test_cartpole_native_has_the_dynamics_of_the_single_environment() -> None:
    envs = make_vector(EnvConfig(id="CartPole-v1", max_episode_steps=30), run_seed=0, num_envs=8)
    assert isinstance(envs, NativeVector)
    assert isinstance(envs._env, CartPoleVectorEnv)
    vector = envs._env
    singles = [MirroredCartPole(vector, index, 30) for index in range(8)]
    ended = check_vector(envs, singles, seed_for=lambda index, episode: None, num_steps=300)
    assert ended > 50


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_masks_follow_observations(mode: AutoresetMode | None) -> None:
    config = EnvConfig(id=MASKED, action_mask_key="mask")
    if mode is None:
        envs: VectorEnv = make_vector(config, run_seed=0, num_envs=3)
    else:
        envs = sync_native(mode, config, 3)
    assert envs.obs_leaves[ACTION_MASK].shape == (4,)
    seed_for = seeds(0) if mode is None else first_seeds(0)
    singles = [MaskedEnv() for _ in range(3)]
    assert check_vector(envs, singles, seed_for=seed_for, num_steps=60, mask_key="mask") > 10


def test_masks_of_workers() -> None:
    config = EnvConfig(id=MASKED, action_mask_key="mask", backend="process")
    envs = make_vector(config, run_seed=0, num_envs=3)
    singles = [MaskedEnv() for _ in range(3)]
    check_vector(envs, singles, seed_for=seeds(0), num_steps=30, mask_key="mask")
    envs.close()


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_info_is_of_the_step_even_where_the_episode_ended(mode: AutoresetMode | None) -> None:
    config = EnvConfig(id=MASKED, backend="serial")
    if mode is None:
        envs: VectorEnv = make_vector(config, run_seed=0, num_envs=3, info_keys=("score", "none"))
    else:
        envs = sync_native(mode, config, 3)
    seed_for = seeds(0) if mode is None else first_seeds(0)
    singles = [MaskedEnv() for _ in range(3)]
    for index, single in enumerate(singles):
        single.reset(seed=seed_for(index, 0))
    episode, num_seen, num_ended = [0] * 3, 0, 0
    envs.reset()
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = sample_actions(rng, envs.action_leaf, 3)
        out = envs.step(actions)
        if "none" in out.info:
            assert np.isnan(out.info["none"]).all()
        for index, single in enumerate(singles):
            if not out.valid[index]:
                assert np.isnan(out.info["score"][index])
                continue
            *_, terminated, truncated, info = single.step(int(actions[index]))
            np.testing.assert_equal(out.info["score"][index], info.get("score", np.nan))
            num_seen += "score" in info
            if terminated or truncated:
                num_ended += "score" in info
                episode[index] += 1
                single.reset(seed=seed_for(index, episode[index]))
    assert num_seen > 20
    assert num_ended > 3


class BatchedFinal(gym.vector.VectorEnv[Any, Any, Any]):
    """Hands ``final_obs`` over as one batched array, as NumPy vector environments do."""

    def __init__(self, inner: SyncVectorEnv[Any, Any]) -> None:
        self._inner = inner
        self.num_envs, self.metadata = inner.num_envs, inner.metadata
        self.single_observation_space = inner.single_observation_space
        self.single_action_space = inner.single_action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._inner.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        *rest, infos = self._inner.step(actions)
        if "final_obs" in infos:
            rows = [
                last if last is not None else self.single_observation_space.sample()
                for last in infos["final_obs"]
            ]
            space = self.single_observation_space
            empty: Any = gym.vector.utils.create_empty_array(space, self.num_envs)
            infos["final_obs"] = gym.vector.utils.concatenate(space, rows, empty)
        return (*rest, infos)


@settings(max_examples=10, deadline=None)
@given(space_seed=st.integers(0, 2**31))
def test_batched_final_observations(space_seed: int) -> None:
    config = EnvConfig(id=TOY, kwargs={"space_seed": space_seed})
    inner: Any = SyncVectorEnv(
        [lambda: make_env(config)] * 3, autoreset_mode=AutoresetMode.SAME_STEP
    )
    envs = NativeVector(BatchedFinal(inner), config, run_seed=0)
    singles = [make_env(config) for _ in range(3)]
    assert check_vector(envs, singles, seed_for=first_seeds(0), num_steps=25) > 3


# The check itself must be able to fail.


def _reward(out: StepResult) -> None:
    out.reward = out.reward + 1e-9


def _swap_ends(out: StepResult) -> None:
    out.terminated, out.truncated = out.truncated, out.terminated


def _no_final(out: StepResult) -> None:
    out.final_obs = None


def _final_is_next(out: StepResult) -> None:
    if out.final_obs is not None:
        out.final_obs = out.obs


def _stale(out: StepResult) -> None:
    out.obs = {name: np.roll(array, 1, axis=0) for name, array in out.obs.items()}


def _never_reset(out: StepResult) -> None:
    out.reset = np.zeros_like(out.reset)


def _always_valid(out: StepResult) -> None:
    out.valid = np.ones_like(out.valid)


def _never_valid(out: StepResult) -> None:
    out.valid = np.zeros_like(out.valid)


def _wrong_dtype(out: StepResult) -> None:
    out.obs = {name: array.astype(np.float64) for name, array in out.obs.items()}


class Doctored:
    """A backend that gets one thing wrong."""

    def __init__(self, inner: VectorEnv, doctor: Callable[[StepResult], None]) -> None:
        self._inner, self._doctor = inner, doctor
        self.num_envs = inner.num_envs
        self.obs_leaves, self.action_leaf = inner.obs_leaves, inner.action_leaf

    def reset(self) -> Arrays:
        return self._inner.reset()

    def step(self, actions: Array) -> StepResult:
        out = self._inner.step(actions)
        self._doctor(out)
        return out

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, arrays: Arrays, data: dict[str, Any]) -> Arrays:
        raise NotImplementedError

    def close(self) -> None:
        self._inner.close()


ANYWHERE = [_reward, _swap_ends, _no_final, _stale, _never_reset, _never_valid, _wrong_dtype]


@pytest.mark.parametrize(
    ("mode", "doctor"),
    [
        *((AutoresetMode.NEXT_STEP, doctor) for doctor in [*ANYWHERE, _always_valid]),
        *((AutoresetMode.SAME_STEP, doctor) for doctor in [*ANYWHERE, _final_is_next]),
    ],
)
def test_a_backend_that_is_wrong_is_found_out(mode: AutoresetMode, doctor: Any) -> None:
    config = EnvConfig(id=MASKED)
    envs = Doctored(sync_native(mode, config, 3), doctor)
    with pytest.raises(ConformanceError):
        check_vector(envs, [MaskedEnv() for _ in range(3)], seed_for=first_seeds(0), num_steps=60)


def test_other_seeds_are_found_out() -> None:
    envs = make_vector(EnvConfig(id=MASKED), run_seed=0, num_envs=2)
    with pytest.raises(ConformanceError, match="reset of environment 0"):
        check_vector(envs, [MaskedEnv(), MaskedEnv()], seed_for=seeds(1), num_steps=1)


# Saving and resuming.


def play(envs: VectorEnv, rng: np.random.Generator, num_steps: int) -> list[Any]:
    """Everything that ``num_steps`` random steps gave."""
    seen: list[Any] = []
    for _ in range(num_steps):
        out = envs.step(sample_actions(rng, envs.action_leaf, envs.num_envs))
        ended = out.terminated | out.truncated
        for name, array in out.obs.items():
            seen.append(array.copy())
            if out.final_obs is not None:
                seen.append(out.final_obs[name][ended].copy())
        seen += [out.reward.copy(), out.terminated.copy(), out.truncated.copy(), out.valid.copy()]
    return seen


def assert_continues(first: VectorEnv, second: VectorEnv, num_steps: int = 60) -> None:
    """``second`` takes over the state of ``first``, and both go the same way from there."""
    rng = np.random.default_rng(0)
    first.reset()
    play(first, rng, 47)
    saved = first.state_dict()
    assert saved is not None
    arrays, data = saved
    mine = {name: array.copy() for name, array in arrays.items()}
    state = rng.bit_generator.state
    expected = play(first, rng, num_steps)
    second.reset()
    play(second, rng, 6)
    second.load_state_dict(mine, data)
    again = second.state_dict()
    assert again is not None
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[0][name], array, err_msg=name)
    rng.bit_generator.state = state
    got = play(second, rng, num_steps)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig(id="CartPole-v1", backend="serial"),
        EnvConfig(id="LunarLander-v3", backend="serial"),
        EnvConfig(id="CartPole-v1", backend="serial", frame_stack=2, max_episode_steps=13),
        EnvConfig(id=TOY, kwargs={"space_seed": 12, "longest": 40}, backend="serial"),
        EnvConfig(id=MASKED, action_mask_key="mask", backend="serial"),
        EnvConfig(id="rookery/TMaze-v0", kwargs={"length": 3}),
        EnvConfig(id="MinAtar/Breakout-v1"),
        EnvConfig(id="MiniGrid-DoorKey-5x5-v0", obs_keys=("image", "direction")),
        EnvConfig(id="CartPole-v1", backend="native"),
        # Here every episode has just ended when the state is saved, and its reset is still due.
        EnvConfig(id="CartPole-v1", backend="native", max_episode_steps=1),
        EnvConfig(id="rookery/Snake-v0", backend="native"),
    ],
    ids=lambda config: f"{config.backend}-{config.id}-{config.frame_stack}",
)
def test_a_saved_vector_continues_exactly(config: EnvConfig) -> None:
    first = make_vector(config, run_seed=1, num_envs=3)
    second = make_vector(config, run_seed=1, num_envs=3)
    assert_continues(first, second)


@pytest.mark.slow
def test_workers_and_serial_continue_each_other() -> None:
    serial = EnvConfig(id=TOY, kwargs={"space_seed": 12, "longest": 40}, backend="serial")
    workers = replace(serial, backend="process")
    one = make_vector(workers, run_seed=1, num_envs=5)
    three = make_vector(replace(workers, num_workers=3), run_seed=1, num_envs=5)
    try:
        assert one.state_dict() is None
        assert_continues(one, three)
        assert_continues(one, make_vector(serial, run_seed=1, num_envs=5))
    finally:
        one.close()
        three.close()


def test_saved_state_is_plain_data() -> None:
    configs = [EnvConfig(id="CartPole-v1", backend=backend) for backend in ("serial", "native")]
    for config in configs:
        envs = make_vector(config, run_seed=1, num_envs=2)
        assert envs.state_dict() is None
        envs.reset()
        saved = envs.state_dict()
        assert saved is not None
        assert json.loads(json.dumps(saved[1])) == saved[1]
        assert all(not array.dtype.hasobject for array in saved[0].values())


def test_an_environment_that_does_not_repeat_begins_a_new_episode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = EnvConfig(id="tests.toy_envs:NoisyEnv", num_envs=2)
    envs = make_vector(config, run_seed=0)
    assert isinstance(envs, SerialVector)
    envs.reset()
    play(envs, np.random.default_rng(0), 3)
    saved = envs.state_dict()
    assert saved is not None
    with caplog.at_level(logging.WARNING):
        obs = envs.load_state_dict(*saved)
    assert "does not repeat an episode" in caplog.text
    assert envs.lost_episodes.all()
    fresh, _ = make_env(config).reset(seed=seed_of(0, "env", 1, 1))
    np.testing.assert_array_equal(obs["obs"][1], fresh)


def test_an_episode_too_long_to_keep_begins_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(episode_log, "MAX_REPLAY_STEPS", 20)
    config = EnvConfig(id=TOY, kwargs={"space_seed": 3, "longest": 70})
    envs = make_vector(config, run_seed=2, num_envs=4)
    assert isinstance(envs, SerialVector)
    envs.reset()
    rng = np.random.default_rng(0)
    lengths = np.zeros(4, int)
    num_lost = num_kept = 0
    saved = None
    for _ in range(60):
        out = envs.step(sample_actions(rng, envs.action_leaf, 4))
        lengths = np.where(out.reset, 0, lengths + 1)
        saved = envs.state_dict()
        assert saved is not None
        lost = saved[0]["length"] < 0
        # Dropped late rather than early, but never kept beyond the limit.
        assert (saved[0]["length"][~lost] == lengths[~lost]).all()
        assert (lengths[lost] >= 20).all()
        num_lost, num_kept = num_lost + lost.sum(), num_kept + (~lost).sum()
    assert num_lost > 0
    assert num_kept > 0
    assert saved is not None
    other = make_vector(config, run_seed=2, num_envs=4)
    assert isinstance(other, SerialVector)
    saved[0]["length"][:2] = -1
    with caplog.at_level(logging.WARNING):
        other.load_state_dict(*saved)
    assert "too long to keep" in caplog.text
    assert other.lost_episodes[:2].all()


def test_a_state_of_another_backend_is_refused() -> None:
    serial = make_vector(EnvConfig(id="CartPole-v1", backend="serial"), run_seed=0, num_envs=2)
    native = make_vector(EnvConfig(id="CartPole-v1", backend="native"), run_seed=0, num_envs=2)
    for envs in (serial, native):
        envs.reset()
    mine, other = serial.state_dict(), native.state_dict()
    assert mine is not None
    assert other is not None
    with pytest.raises(UserError, match="backend format 'native'"):
        serial.load_state_dict(*other)
    with pytest.raises(UserError, match="backend format 'episodes'"):
        native.load_state_dict(*mine)
    three = make_vector(EnvConfig(id="CartPole-v1", backend="serial"), run_seed=0, num_envs=3)
    with pytest.raises(UserError, match="is of 2 environments"):
        three.load_state_dict(*mine)


def test_a_resumed_vector_keeps_its_place_and_has_its_own_settings() -> None:
    def cartpole(limit: int) -> VectorEnv:
        kwargs = {"max_episode_steps": limit}
        config = EnvConfig(id="CartPole-v1", backend="native", kwargs=kwargs)
        return make_vector(config, run_seed=0, num_envs=1)

    longer, shorter = cartpole(20), cartpole(8)
    longer.reset()
    for step in range(5):
        longer.step(np.array([step % 2]))
    saved = longer.state_dict()
    assert saved is not None
    shorter.load_state_dict(*saved)
    ends = {"longer": longer, "shorter": shorter}
    lengths = {}
    for name, envs in ends.items():
        step, cut = 5, False
        while not cut:
            cut, step = bool(envs.step(np.array([step % 2])).truncated[0]), step + 1
        lengths[name] = step
    assert lengths == {"longer": 20, "shorter": 8}


def test_a_vector_of_other_objects_cannot_be_saved() -> None:
    envs = sync_native(AutoresetMode.NEXT_STEP, EnvConfig(id=TOY), 2)
    envs.reset()
    assert envs.state_dict() is None


def test_the_observation_acted_on_outlives_the_serial_step() -> None:
    envs = make_vector(EnvConfig(id="CartPole-v1", backend="serial"), run_seed=0, num_envs=2)
    obs = envs.reset()["obs"]
    before = obs.copy()
    after = envs.step(np.zeros(2, np.int64)).obs["obs"]
    np.testing.assert_array_equal(obs, before)
    assert (after != before).any()


def test_toy_environments_end_in_every_way() -> None:
    env = RandomEnv(space_seed=0, longest=1)
    ends = set()
    for seed in range(30):
        env.reset(seed=seed)
        ends.add(env.step(env.action_space.sample())[2:4])
    assert ends == {(True, False), (False, True), (True, True)}
