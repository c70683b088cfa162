"""Returns and advantages against slow sums, and the limits the papers state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rookery.core.spec import Array
from rookery.ops.returns import (
    discounted_returns,
    generalized_advantages,
    next_values,
    vtrace,
)
from tests.reference import returns_reference as reference

SEEDS = st.integers(0, 2**32 - 1)
UNIT = st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])
FUZZ = settings(max_examples=40, deadline=None, derandomize=True)

FiveTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Steps(NamedTuple):
    """Rewards, values and ends ``[T, B]`` (values ``[T+1, B]``), float64."""

    reward: Array
    value: Array
    terminated: Array
    truncated: Array
    final_value: Array

    def tensors(self, floats: torch.dtype = torch.float64) -> FiveTensors:
        reward, value, terminated, truncated, final = (torch.from_numpy(a) for a in self)
        return reward.to(floats), value.to(floats), terminated, truncated, final.to(floats)


def random_steps(seed: int, end_rate: float = 0.25, num_steps: int | None = None) -> Steps:
    """Episodes that end inside, at the edges, never, and both ways at once."""
    rng = np.random.default_rng(seed)
    shape = num_steps or int(rng.integers(1, 12)), int(rng.integers(1, 5))
    return Steps(
        reward=rng.normal(size=shape),
        value=rng.normal(size=(shape[0] + 1, shape[1])),
        terminated=rng.random(shape) < end_rate,
        truncated=rng.random(shape) < end_rate,
        final_value=rng.normal(size=shape),
    )


def advantages(steps: Steps, gamma: float, lam: float) -> Array:
    return generalized_advantages(*steps.tensors(), gamma, lam).numpy()


@given(SEEDS)
@FUZZ
def test_next_values(seed: int) -> None:
    steps = random_steps(seed)
    found = next_values(*steps.tensors()[1:])
    np.testing.assert_array_equal(found.numpy(), reference.next_values(*steps[1:]))


@given(SEEDS, UNIT, UNIT)
@FUZZ
def test_generalized_advantages(seed: int, gamma: float, lam: float) -> None:
    steps = random_steps(seed)
    expected = reference.generalized_advantages(*steps, gamma, lam)
    np.testing.assert_allclose(advantages(steps, gamma, lam), expected, rtol=1e-10, atol=1e-12)


@given(SEEDS, UNIT, UNIT)
@FUZZ
def test_generalized_advantages_in_float32(seed: int, gamma: float, lam: float) -> None:
    """Rollouts are float32; over a dozen steps that costs no more than 1e-5."""
    steps = random_steps(seed)
    found = generalized_advantages(*steps.tensors(torch.float32), gamma, lam)
    assert found.dtype == torch.float32
    expected = reference.generalized_advantages(*steps, gamma, lam)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


@given(SEEDS, UNIT)
@FUZZ
def test_lambda_zero_is_the_one_step_advantage(seed: int, gamma: float) -> None:
    steps = random_steps(seed)
    following = reference.next_values(*steps[1:])
    expected = steps.reward + gamma * following - steps.value[:-1]
    np.testing.assert_allclose(advantages(steps, gamma, 0.0), expected, rtol=1e-10, atol=1e-12)


@given(SEEDS, UNIT)
@FUZZ
def test_lambda_one_is_the_return_less_the_value(seed: int, gamma: float) -> None:
    """Monte Carlo where the episode ends inside, T-step bootstrapped where it does not."""
    steps = random_steps(seed)
    returns = reference.returns_to_go(
        steps.reward, steps.terminated, steps.truncated, steps.value, steps.final_value, gamma
    )
    expected = returns - steps.value[:-1]
    np.testing.assert_allclose(advantages(steps, gamma, 1.0), expected, rtol=1e-10, atol=1e-12)


def test_monte_carlo_needs_no_value_estimates() -> None:
    """With lambda 1 and an episode that ends inside, the target is the return, whatever V says."""
    steps = random_steps(3, end_rate=0.0, num_steps=6)
    steps.terminated[-1] = True
    other = steps._replace(value=steps.value * 7.0 + 3.0)
    targets = [advantages(s, 0.9, 1.0) + s.value[:-1] for s in (steps, other)]
    np.testing.assert_allclose(targets[0], targets[1], atol=1e-12)


def one_step(*, terminated: bool, truncated: bool) -> float:
    """Advantage of one step of reward 1 from V=10 to V=100, cut at V=1000, discount 0.5."""
    steps = Steps(
        reward=np.array([[1.0]]),
        value=np.array([[10.0], [100.0]]),
        terminated=np.array([[terminated]]),
        truncated=np.array([[truncated]]),
        final_value=np.array([[1000.0]]),
    )
    return float(advantages(steps, 0.5, 0.95)[0, 0])


def test_terminated_does_not_bootstrap_and_truncated_does() -> None:
    assert one_step(terminated=False, truncated=False) == 1.0 + 0.5 * 100.0 - 10.0
    assert one_step(terminated=False, truncated=True) == 1.0 + 0.5 * 1000.0 - 10.0
    assert one_step(terminated=True, truncated=False) == 1.0 - 10.0
    assert one_step(terminated=True, truncated=True) == 1.0 - 10.0


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_nothing_flows_back_over_the_end_of_an_episode(end: str) -> None:
    steps = random_steps(11, end_rate=0.0, num_steps=9)
    cut = 4
    getattr(steps, end)[cut] = True
    before = advantages(steps, 0.99, 0.95)
    steps.reward[cut + 1 :] += 5.0
    steps.value[cut + 1 :] += 5.0
    after = advantages(steps, 0.99, 0.95)
    np.testing.assert_array_equal(before[: cut + 1], after[: cut + 1])
    assert not np.allclose(before[cut + 1 :], after[cut + 1 :])


def test_a_missing_row_of_values_is_refused() -> None:
    steps = random_steps(0)
    with pytest.raises(ValueError, match=r"T\+1 rows"):
        advantages(steps._replace(value=steps.value[:-1]), 0.99, 0.95)


BARS = st.sampled_from([0.5, 1.0, 2.5])


def random_log_ratio(seed: int, steps: Steps) -> Array:
    """Policies that have come apart: ratios from about 0.1 to 10."""
    return np.random.default_rng(seed + 1).normal(size=steps.reward.shape)


def traced(steps: Steps, log_ratio: Array, gamma: float, **bars: float) -> tuple[Array, Array]:
    target, advantage = vtrace(torch.from_numpy(log_ratio), *steps.tensors(), gamma, **bars)
    return target.numpy(), advantage.numpy()


@given(SEEDS, UNIT, UNIT, BARS, BARS)
@FUZZ
def test_vtrace(seed: int, gamma: float, lam: float, rho_bar: float, c_bar: float) -> None:
    steps = random_steps(seed)
    log_ratio, bars = random_log_ratio(seed, steps), {"rho_bar": rho_bar, "c_bar": c_bar}
    found = traced(steps, log_ratio, gamma, lam=lam, **bars)
    expected = reference.vtrace(log_ratio, *steps, gamma, lam=lam, **bars)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)


@given(SEEDS, UNIT, UNIT)
@FUZZ
def test_vtrace_in_float32(seed: int, gamma: float, lam: float) -> None:
    steps = random_steps(seed)
    log_ratio = random_log_ratio(seed, steps)
    ratio32 = torch.from_numpy(log_ratio).float()
    found = vtrace(ratio32, *steps.tensors(torch.float32), gamma, lam=lam)
    expected = reference.vtrace(log_ratio, *steps, gamma, lam=lam)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-5, atol=1e-5)


@given(SEEDS, UNIT)
@FUZZ
def test_on_policy_vtrace_is_the_n_step_return(seed: int, gamma: float) -> None:
    """Eq. 2 of the paper: with ratios of 1 the target is what really followed."""
    steps = random_steps(seed)
    target, advantage = traced(steps, np.zeros_like(steps.reward), gamma)
    returns = reference.returns_to_go(
        steps.reward, steps.terminated, steps.truncated, steps.value, steps.final_value, gamma
    )
    np.testing.assert_allclose(target, returns, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(advantage, returns - steps.value[:-1], rtol=1e-10, atol=1e-12)


@given(SEEDS, UNIT, UNIT)
@FUZZ
def test_on_policy_vtrace_is_the_generalised_advantage(seed: int, gamma: float, lam: float) -> None:
    steps = random_steps(seed)
    target, advantage = traced(steps, np.zeros_like(steps.reward), gamma, lam=lam)
    expected = advantages(steps, gamma, lam)
    np.testing.assert_allclose(advantage, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(target, expected + steps.value[:-1], rtol=1e-10, atol=1e-12)


def test_vtrace_of_actions_the_policy_would_never_take_learns_nothing() -> None:
    """Weights of 0: the targets are the estimates themselves."""
    steps = random_steps(7)
    target, advantage = traced(steps, np.full_like(steps.reward, -np.inf), 0.9)
    np.testing.assert_array_equal(target, steps.value[:-1])
    np.testing.assert_array_equal(advantage, 0.0)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_vtrace_does_not_flow_back_over_the_end_of_an_episode(end: str) -> None:
    steps = random_steps(11, end_rate=0.0, num_steps=9)
    log_ratio, cut = random_log_ratio(11, steps), 4
    getattr(steps, end)[cut] = True
    before = traced(steps, log_ratio, 0.99)
    steps.reward[cut + 1 :] += 5.0
    steps.value[cut + 1 :] += 5.0
    after = traced(steps, log_ratio, 0.99)
    for was, now in zip(before, after, strict=True):
        np.testing.assert_array_equal(was[: cut + 1], now[: cut + 1])
        assert not np.allclose(was[cut + 1 :], now[cut + 1 :])


def test_vtrace_refuses_a_missing_row_of_values() -> None:
    steps = random_steps(0)
    with pytest.raises(ValueError, match=r"T\+1 rows"):
        traced(steps._replace(value=steps.value[:-1]), np.zeros_like(steps.reward), 0.99)


@given(SEEDS, UNIT)
@FUZZ
def test_discounted_returns(seed: int, gamma: float) -> None:
    steps = random_steps(seed)
    start = steps.value[0]
    found = discounted_returns(
        torch.from_numpy(steps.reward),
        torch.from_numpy(steps.terminated),
        torch.from_numpy(start),
        gamma,
    )
    expected = reference.discounted_returns(steps.reward, steps.terminated, start, gamma)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_discounted_returns_in_two_halves_equal_the_whole() -> None:
    rng = np.random.default_rng(5)
    reward = torch.from_numpy(rng.normal(size=(10, 3)))
    reset = torch.from_numpy(rng.random((10, 3)) < 0.2)
    whole = discounted_returns(reward, reset, torch.zeros(3, dtype=torch.float64), 0.9)
    first = discounted_returns(reward[:4], reset[:4], whole.new_zeros(3), 0.9)
    second = discounted_returns(reward[4:], reset[4:], first[-1], 0.9)
    torch.testing.assert_close(torch.cat([first, second]), whole)
