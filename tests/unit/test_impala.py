"""IMPALA: its loss against slow sums, its limits, and what it refuses.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rookery.algos.a2c import A2C, A2CConfig
from rookery.algos.algorithm import learns_off_policy
from rookery.algos.impala import IMPALA, IMPALAConfig
from rookery.core.errors import UserError
from rookery.core.records import Rollout
from rookery.core.spec import Array
from rookery.nets.actor_critic import ActorCritic
from tests.reference import returns_reference
from tests.rollouts import BOX, DISCRETE, gradient, random_rollout, small_policy

CPU = torch.device("cpu")
T, B = 8, 5
CORES = pytest.mark.parametrize("core", ["none", "gru", "lstm"])


def rollout_of(policy: ActorCritic, *, spend: bool = False) -> Rollout:
    rng = np.random.default_rng(0)
    return random_rollout(policy, rng, num_steps=T, num_envs=B, spend_steps_on_resets=spend)


def impala(core: str, **settings: Any) -> IMPALA:
    return IMPALA(IMPALAConfig(**settings), recurrent=core != "none", device=CPU)


def mean_where(values: Array, mask: Array) -> float:
    return float(values[mask].mean())


@CORES
@pytest.mark.parametrize("spend", [False, True])
@pytest.mark.parametrize("lam", [1.0, 0.9])
def test_on_policy_it_is_a2c(core: str, spend: bool, lam: float) -> None:
    policy = small_policy(core)
    rollout = rollout_of(policy, spend=spend)
    settings = {"entropy_coef": 0.02, "gae_lambda": lam, "gamma": 0.9}
    mine, a2c = impala(core, **settings), A2C(
        A2CConfig(**settings), recurrent=core != "none", device=CPU
    )  # fmt: skip
    gradients = []
    for algorithm in (mine, a2c):
        batch: Any = algorithm.prepare(rollout)
        (whole,) = algorithm.minibatches(batch, np.random.default_rng(0))
        gradients.append(gradient(policy, algorithm.loss(policy, whole, 0)[0]))
    np.testing.assert_allclose(*gradients, rtol=1e-4, atol=1e-6)


@CORES
@pytest.mark.parametrize("action", [DISCRETE, BOX])
def test_the_loss_of_moved_weights_equals_its_formula(core: str, action: Any) -> None:
    acted, now = small_policy(core, action), small_policy(core, action, seed=3)
    with torch.no_grad():
        for old, new in zip(acted.parameters(), now.parameters(), strict=True):
            new.lerp_(old, 0.7)
    rollout = rollout_of(acted, spend=True)
    algorithm = impala(core, rho_bar=1.5, c_bar=1.2, gamma=0.9, entropy_coef=0.1, value_coef=0.7)
    batch = algorithm.prepare(rollout)
    loss, metrics = algorithm.loss(now, batch, 0)
    with torch.inference_mode():
        dist, value = now.unroll_beyond(batch.seen, batch.state, batch.reset)
        log_prob, entropy = dist.log_prob(batch.action).numpy(), dist.entropy().numpy()
    target, advantage = returns_reference.vtrace(
        log_prob - rollout.log_prob,
        rollout.reward,
        value.numpy(),
        rollout.terminated,
        rollout.truncated,
        rollout.final_value,
        0.9,
        rho_bar=1.5,
        c_bar=1.2,
    )
    expected = (
        mean_where(-log_prob * advantage, rollout.mask)
        + 0.7 * mean_where(0.5 * (value.numpy()[:-1] - target) ** 2, rollout.mask)
        - 0.1 * mean_where(entropy, rollout.mask)
    )
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    ratio = np.exp(log_prob - rollout.log_prob)
    assert float(metrics["rho_clipped"]) == pytest.approx(mean_where(ratio > 1.5, rollout.mask))
    assert (ratio > 1.2).any(), "something is cut"
    assert (ratio < 1.2).any(), "something is not"


@CORES
def test_values_beyond_are_those_of_acting(core: str) -> None:
    policy = small_policy(core)
    rollout = rollout_of(policy)
    batch = impala(core).prepare(rollout)
    with torch.inference_mode():
        dist, value = policy.unroll_beyond(batch.seen, batch.state, batch.reset)
    np.testing.assert_allclose(value.numpy(), rollout.value, atol=1e-5)
    np.testing.assert_allclose(
        dist.log_prob(batch.action).numpy(), rollout.log_prob, atol=1e-5
    )  # fmt: skip


def test_no_gradient_flows_through_the_targets() -> None:
    """The value head's gradient is that of a regression on fixed targets."""
    policy = small_policy()
    algorithm = impala("none", entropy_coef=0.0, value_coef=1.0)
    batch = algorithm.prepare(rollout_of(policy))
    _, value = policy.unroll_beyond(batch.seen, batch.state, batch.reset)
    dist, _ = policy.unroll_beyond(batch.seen, batch.state, batch.reset)
    with torch.no_grad():
        target, advantage = algorithm._traced(
            batch, dist.log_prob(batch.action) - batch.log_prob, value
        )
    fixed = (0.5 * (value[:-1] - target) ** 2).mean() - (
        dist.log_prob(batch.action) * advantage
    ).mean()
    found, _ = algorithm.loss(policy, batch, 0)
    np.testing.assert_allclose(gradient(policy, found), gradient(policy, fixed), atol=1e-6)


@CORES
def test_minibatches_are_whole_environments_and_all_of_them(core: str) -> None:
    policy = small_policy(core)
    algorithm = impala(core, num_minibatches=2)
    batch = algorithm.prepare(rollout_of(policy))
    parts = list(algorithm.minibatches(batch, np.random.default_rng(1)))
    assert [part.mask.shape for part in parts] == [(T, 3), (T, 2)]
    assert all(part.reset.shape[0] == T + 1 for part in parts)
    columns = torch.cat([part.reward for part in parts], 1)
    assert sorted(columns[0].tolist()) == sorted(batch.reward[0].tolist())
    for part in parts:
        assert torch.isfinite(algorithm.loss(policy, part, 0)[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"c_bar": 0.0}, "c_bar: must be positive"),
        ({"rho_bar": 0.5}, r"rho_bar: must be at least algo.c_bar \(1\), got 0.5"),
        ({"num_minibatches": 0}, "num_minibatches: must be at least 1"),
        ({"rollout_steps": 0}, "rollout_steps"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        IMPALAConfig(**settings)


def test_who_learns_off_policy() -> None:
    assert [learns_off_policy(name) for name in ("a2c", "impala", "ppo")] == [False, True, False]
