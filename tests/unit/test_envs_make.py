"""From a configuration to environments."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rookery.core.errors import UserError
from rookery.core.seeding import seed_of
from rookery.envs import make
from rookery.envs.make import EnvConfig, make_env, make_vector, register_callable
from rookery.envs.native import NativeVector
from rookery.envs.process import ProcessVector
from rookery.envs.serial import SerialVector
from tests.toy_envs import FaultyEnv, LimitedVector, RandomEnv, Shift


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": ""}, "env.id is empty"),
        ({"num_envs": 0}, "env.num_envs is 0; it must be at least 1"),
        ({"frame_stack": 0}, "env.frame_stack is 0"),
        ({"num_workers": -1}, "env.num_workers is -1"),
        ({"max_episode_steps": 0}, "env.max_episode_steps is 0"),
        ({"step_timeout_secs": 0.0}, "env.step_timeout_secs is 0.0; it must be more than 0"),
        ({"step_timeout_secs": float("nan")}, "env.step_timeout_secs is nan"),
        ({"action_mask_key": ""}, "env.action_mask_key is empty"),
        ({"wrappers": ["NoColon"]}, "write 'module:Class'"),
        ({"wrappers": [{"kwargs": {}}]}, "write 'module:Class'"),
        ({"wrappers": [{"wrapper": "a:B", "args": 1}]}, "write 'module:Class'"),
    ],
)
def test_bad_settings_are_refused_with_the_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        EnvConfig(**({"id": "CartPole-v1"} | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("CartPole-v99", "did you mean 'CartPole-v1'"),
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("ALE/Pnog-v5", "did you mean 'ALE/Pong-v5'"),
        ("Zzzzqqq-v0", "write 'module:name'"),
        ("no_such_module:thing", "importing 'no_such_module' failed"),
        ("tests.toy_envs:no_such_factory", "the module 'tests.toy_envs' has no 'no_such_factory'"),
        ("tests.toy_envs:not_callable", "it must be callable"),
        ("tests.toy_envs:not_an_env", "returned a object; it must return a gymnasium.Env"),
        ("tests.toy_envs:needs_missing_package", "not installed .*a_package_nobody_has"),
        ("tests.toy_envs:LimitedVector", "a single one is needed here"),
        ("callable:nowhere", "put it in a module and give env.id='module:name'"),
    ],
)
def test_ids_that_lead_nowhere(env_id: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_env(EnvConfig(id=env_id))
    assert "\n" not in str(caught.value)


def test_a_missing_dependency_is_named() -> None:
    with pytest.raises(UserError, match=r"phys2d/CartPole-v1 needs a package .*jax"):
        make_env(EnvConfig(id="phys2d/CartPole-v1"))


def test_wrong_kwargs_are_the_users() -> None:
    with pytest.raises(UserError, match=r"could not be built .*speed.*check env\.kwargs"):
        make_env(EnvConfig(id="CartPole-v1", kwargs={"speed": 3}))


def test_every_form_of_id() -> None:
    assert isinstance(make_env(EnvConfig(id="tests.toy_envs:RandomEnv")).unwrapped, RandomEnv)
    by_module = make_env(EnvConfig(id="gymnasium.envs:CartPole-v1"))
    assert by_module.spec is not None
    assert by_module.spec.id == "CartPole-v1"
    assert make_env(EnvConfig(id="rookery/Snake-v0")).observation_space.shape == (35,)


def test_atari_is_registered_when_it_is_asked_for() -> None:
    env = make_env(EnvConfig(id="ALE/Pong-v5"))
    assert env.observation_space.shape == (4, 84, 84)
    env.close()


def test_callables_are_known_to_this_process_alone() -> None:
    def small() -> RandomEnv:
        return RandomEnv(longest=2)

    first = register_callable(small)
    assert register_callable(small) == first

    def other() -> RandomEnv:
        return RandomEnv(longest=3)

    other.__name__ = "small"
    second = register_callable(other)
    assert second != first
    assert make_env(EnvConfig(id=first)).unwrapped._longest == 2  # type: ignore[attr-defined]
    assert make_env(EnvConfig(id=second)).unwrapped._longest == 3  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="put it in a module"):
        make_vector(EnvConfig(id=first, backend="process"), run_seed=0)


def test_kwargs_reach_the_environment() -> None:
    config = EnvConfig(id="tests.toy_envs:FaultyEnv", kwargs={"length": 1})
    env = make_env(config)
    env.reset(seed=0)
    assert env.step(0)[2]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "tests.toy_envs:FaultyEnv"])
def test_time_limit(env_id: str) -> None:
    kwargs: dict[str, Any] = {"length": 100} if ":" in env_id else {}
    env = make_env(EnvConfig(id=env_id, kwargs=kwargs, max_episode_steps=3))
    env.reset(seed=0)
    assert [env.step(step % 2)[3] for step in range(3)] == [False, False, True]


def test_wrappers_are_applied_in_order() -> None:
    wrappers: list[str | dict[str, Any]] = [
        {"wrapper": "tests.toy_envs:Shift", "kwargs": {"by": 10.0}},
        "gymnasium.wrappers:RecordEpisodeStatistics",
    ]
    env = make_env(EnvConfig(id="tests.toy_envs:FaultyEnv", wrappers=wrappers))
    assert isinstance(env, gym.wrappers.RecordEpisodeStatistics)
    assert isinstance(env.env, Shift)
    env.reset(seed=0)
    assert env.step(0)[1] == 10.5


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("no_such_module:W", "importing 'no_such_module' failed"),
        ("tests.toy_envs:Shifty", "did you mean 'Shift'"),
        ({"wrapper": "tests.toy_envs:Shift", "kwargs": {"up": 1}}, "could not be applied .*up"),
        ("builtins:repr", "returned a str; it must return a gymnasium.Env"),
    ],
)
def test_bad_wrappers(wrapper: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_env(EnvConfig(id="CartPole-v1", wrappers=[wrapper]))


def test_frames_are_stacked() -> None:
    envs = make_vector(EnvConfig(id="CartPole-v1", frame_stack=3, num_envs=2), run_seed=0)
    assert isinstance(envs, SerialVector)
    obs = envs.reset()["obs"]
    assert obs.shape == (2, 3, 4)
    first = obs[0, 0].copy()
    out = envs.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(out.obs["obs"][0, :2], [first, first])
    assert (out.obs["obs"][0, 2] != first).any()


def kind_of(**settings: Any) -> type:
    chosen: dict[str, Any] = {"id": "CartPole-v1", "num_envs": 2} | settings
    envs = make_vector(EnvConfig(**chosen), run_seed=0)
    envs.close()
    return type(envs)


def test_auto_takes_native_where_it_is_the_same_environment() -> None:
    assert kind_of() is NativeVector
    assert kind_of(id="rookery/Snake-v0") is NativeVector
    assert kind_of(max_episode_steps=7) is NativeVector
    assert kind_of(kwargs={"sutton_barto_reward": True}) is NativeVector
    assert kind_of(id="tests.toy_envs:vector_or_single") is NativeVector


def test_auto_goes_without_native_where_it_cannot_be_honoured() -> None:
    assert kind_of(id="MountainCar-v0") is SerialVector
    assert kind_of(frame_stack=2) is SerialVector
    assert kind_of(wrappers=["tests.toy_envs:Shift"]) is SerialVector
    assert kind_of(id="rookery/Snake-v0", max_episode_steps=9) is SerialVector
    assert kind_of(id="tests.toy_envs:MaskedEnv", action_mask_key="mask") is SerialVector
    assert kind_of(backend="serial") is SerialVector


def test_auto_refuses_a_vector_class_with_other_spaces() -> None:
    assert kind_of(id="tests.toy_envs:other_spaces", num_envs=1) is SerialVector


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"id": "MountainCar-v0"}, "has no vector class of its own"),
        ({"frame_stack": 2}, "cannot stack frames"),
        ({"wrappers": ["tests.toy_envs:Shift"]}, "takes no env.wrappers"),
        ({"id": "rookery/Snake-v0", "max_episode_steps": 9}, "takes no max_episode_steps"),
        ({"id": "tests.toy_envs:FaultyEnv"}, "has no num_envs argument"),
    ],
)
def test_native_is_refused_where_it_cannot_be_honoured(
    settings: dict[str, Any], message: str
) -> None:
    config = EnvConfig(**({"id": "CartPole-v1", "backend": "native"} | settings))
    with pytest.raises(UserError, match=f"env.backend=native: .*{message}"):
        make_vector(config, run_seed=0)


@pytest.mark.parametrize(("limit", "expected"), [(None, 500), (11, 11)])
def test_native_has_the_time_limit_of_the_single_environment(
    limit: int | None, expected: int
) -> None:
    envs = make_vector(EnvConfig(id="CartPole-v1", max_episode_steps=limit), run_seed=0)
    assert isinstance(envs, NativeVector)
    assert isinstance(envs._env, CartPoleVectorEnv)
    assert envs._env.max_episode_steps == expected
    assert make_vector(EnvConfig(id="CartPole-v0"), run_seed=0)._env.max_episode_steps == 200  # type: ignore[attr-defined]


def test_registered_arguments_reach_the_native_class() -> None:
    gym.register(
        id="ToyShort-v0",
        entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
        vector_entry_point="gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv",
        kwargs={"sutton_barto_reward": True},
    )
    try:
        envs = make_vector(EnvConfig(id="ToyShort-v0"), run_seed=0)
        assert isinstance(envs, NativeVector)
        assert envs._env._sutton_barto_reward  # type: ignore[attr-defined]
    finally:
        del gym.registry["ToyShort-v0"]


def test_only_a_named_argument_counts_as_a_time_limit() -> None:
    assert make._accepts(CartPoleVectorEnv, "max_episode_steps")
    assert not make._accepts(LimitedVector, "max_episode_steps")
    assert not make._accepts(lambda **kwargs: None, "max_episode_steps")


def test_seeds_name_the_environments_of_the_run() -> None:
    config = EnvConfig(id="Acrobot-v1", backend="serial")
    all_four = make_vector(config, run_seed=5, num_envs=4).reset()["obs"].copy()
    last_two = make_vector(config, run_seed=5, num_envs=2, first_env=2).reset()["obs"]
    np.testing.assert_array_equal(all_four[2:], last_two)
    elsewhere = make_vector(config, run_seed=5, num_envs=4, role="eval").reset()["obs"]
    assert (all_four != elsewhere).any(axis=1).all()
    single = make_env(config)
    obs, _ = single.reset(seed=seed_of(5, "env", 3, 0))
    np.testing.assert_array_equal(obs, all_four[3])


def test_num_envs_of_the_config_is_the_default() -> None:
    config = EnvConfig(id="CartPole-v1", num_envs=3)
    assert make_vector(config, run_seed=0).num_envs == 3
    assert make_vector(config, run_seed=0, num_envs=5).num_envs == 5
    with pytest.raises(UserError, match=r"env\.num_envs is 0"):
        make_vector(config, run_seed=0, num_envs=0)


def test_environments_of_a_run_must_be_alike() -> None:
    sizes = iter([2, 3])

    def changing() -> gym.Env[Any, Any]:
        env = FaultyEnv()
        env.observation_space = gym.spaces.Box(0, 1, (next(sizes),))
        return env

    config = EnvConfig(id=register_callable(changing))
    with pytest.raises(UserError, match=r"\(index 1\) has other spaces than index 0"):
        make_vector(config, run_seed=0, num_envs=2)


def test_workers_get_plain_data_only() -> None:
    config = EnvConfig(id="CartPole-v1", backend="process", kwargs={"x": object()})
    with pytest.raises(UserError, match="must be plain data"):
        make_vector(config, run_seed=0)


def test_a_worker_says_what_the_user_did_wrong() -> None:
    config = EnvConfig(id="CartPol-v1", backend="process", num_workers=1)
    with pytest.raises(UserError, match="did you mean 'CartPole-v1'") as caught:
        make_vector(config, run_seed=0)
    assert caught.value.exit_code == 2


def test_there_are_no_more_workers_than_environments() -> None:
    envs = make_vector(
        EnvConfig(id="CartPole-v1", backend="process", num_workers=4), run_seed=0, num_envs=1
    )
    assert isinstance(envs, ProcessVector)
    assert len(envs._workers) == 1
    envs.close()
    envs.close()


def test_workers_do_not_import_torch() -> None:
    code = "import sys, rookery.envs.process_worker; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
