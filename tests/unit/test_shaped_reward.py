"""Rewards of the user's own to learn from; what is reported stays raw."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import rookery
from rookery.algos.a2c import A2C, A2CConfig
from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.core.spec import Array, Arrays
from rookery.envs.bipedal import FALL, SURE_FALL, TIME, pressing_on, sure_footed
from rookery.envs.snake import CARE, LOW_STORE, with_care
from tests.rollouts import random_rollout, small_policy

pytestmark = pytest.mark.slow

HERE = __name__
CPU = torch.device("cpu")


def twice_and_seen(reward: Array, obs: Arrays) -> Array:
    return 2 * reward + obs["obs"][..., 0]


def too_few(reward: Array, obs: Arrays) -> Array:
    return reward[:-1]


def worse_the_longer(reward: Array, obs: Arrays) -> Array:
    return -reward


def test_the_algorithm_learns_from_what_the_function_returns() -> None:
    policy = small_policy()
    rollout = random_rollout(policy, np.random.default_rng(0), num_steps=7, num_envs=3)
    raw = rollout.reward.copy()
    shaped = A2C(A2CConfig(shape_reward=f"{HERE}:twice_and_seen"), recurrent=False, device=CPU)
    batch = shaped.prepare(rollout)
    np.testing.assert_array_equal(rollout.reward, raw)
    rollout.reward[:] = 2 * raw + rollout.obs["obs"][:-1, :, 0]
    expected = A2C(A2CConfig(), recurrent=False, device=CPU).prepare(rollout)
    torch.testing.assert_close(batch.target, expected.target)
    torch.testing.assert_close(batch.advantage, expected.advantage)


def test_rewards_are_cut_before_they_are_scaled() -> None:
    policy = small_policy()
    rollout = random_rollout(policy, np.random.default_rng(0), num_steps=7, num_envs=3)
    config = A2CConfig(reward_min=-0.2, reward_max=0.1, reward_scale=3.0)
    batch = A2C(config, recurrent=False, device=CPU).prepare(rollout)
    assert rollout.reward.min() < -0.2, "raw, and worth cutting"
    assert rollout.reward.max() > 0.1
    rollout.reward[:] = np.clip(rollout.reward, -0.2, 0.1) * 3.0
    expected = A2C(A2CConfig(), recurrent=False, device=CPU).prepare(rollout)
    torch.testing.assert_close(batch.target, expected.target)


def test_a_floor_above_the_ceiling_is_refused() -> None:
    with pytest.raises(UserError, match="reward_min: 1 must be below"):
        A2CConfig(reward_min=1.0, reward_max=0.5)


def test_reported_returns_stay_raw(tmp_path: Path) -> None:
    run = rookery.train(
        "CartPole-v1",
        run=tmp_path / "run",
        steps=2000,
        envs=4,
        log_every=500,
        ppo={"shape_reward": f"{HERE}:worse_the_longer", "rollout_steps": 32},
        eval={"episodes": 2},
    )
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").open()]
    returns = [r["rollout/return_mean"] for r in records if r.get("rollout/return_mean")]
    assert returns
    assert min(returns) > 0
    assert run.evaluate(episodes=2)["return_mean"] > 0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (f"{HERE}:too_fiew", "did you mean 'too_few'"),
        (f"{HERE}:too_few", "it must return one reward per step"),
        ("nowhere:f", "no module named 'nowhere'"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_in_one_line(
    function: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "cartpole", "--quiet", "--ppo.shape_reward", function]) != 0
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_snake_with_care_minds_low_stores() -> None:
    features = np.zeros((1, 4, 35), np.float32)
    features[0, :, 32] = [1.0, LOW_STORE, 0.0, LOW_STORE / 2]  # food
    features[0, :, 33] = [1.0, LOW_STORE, 1.0, 0.0]  # water
    reward = np.array([[0.0, -2.0, 0.0, 0.0]], np.float32)
    shaped = with_care(reward, {"obs": features})
    np.testing.assert_allclose(shaped, [[0.0, -2.0, -CARE, -1.25 * CARE]], rtol=1e-6)


def test_a_walker_that_presses_on_fears_falls_less_and_pays_for_time() -> None:
    reward = np.array([[-100.0, 0.3, 0.0]], np.float32)
    shaped = pressing_on(reward, {})
    np.testing.assert_allclose(shaped, [[FALL - TIME, 0.3 - TIME, -TIME]], rtol=1e-6)
    discounted_wait = -TIME / (1 - 0.99)
    assert FALL < discounted_wait < 0, "waiting for ever costs, but less than to fall at once"


def test_a_sure_footed_walker_fears_falls_alone() -> None:
    reward = np.array([[-100.0, 0.3, 0.0, -9.0]], np.float32)
    np.testing.assert_array_equal(sure_footed(reward, {}), [[SURE_FALL, *reward[0, 1:]]])
    assert SURE_FALL < -100 < FALL
