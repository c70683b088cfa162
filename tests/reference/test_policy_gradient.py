"""Policy-gradient losses against their formulas, values and slopes."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rookery.core.spec import Array
from rookery.ops.policy_gradient import (
    approximate_kl,
    clipped_surrogate_loss,
    masked_mean,
    policy_gradient_loss,
    standardize,
)
from tests.reference import policy_gradient_reference as reference

SEEDS = st.integers(0, 2**32 - 1)
FUZZ = settings(max_examples=40, deadline=None, derandomize=True)


def random_samples(seed: int, num: int = 32) -> tuple[Array, Array, Array]:
    """New and old log-probabilities some way apart, and advantages."""
    rng = np.random.default_rng(seed)
    old = np.log(rng.uniform(0.01, 1.0, num))
    return old + rng.normal(0.0, 0.4, num), old, rng.normal(0.0, 2.0, num)


def tensor_samples(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    new, old, advantage = random_samples(seed)
    return torch.from_numpy(new), torch.from_numpy(old), torch.from_numpy(advantage)


@given(SEEDS)
@FUZZ
def test_policy_gradient_loss(seed: int) -> None:
    log_prob, _, advantage = random_samples(seed)
    found = policy_gradient_loss(torch.from_numpy(log_prob), torch.from_numpy(advantage))
    np.testing.assert_allclose(found.numpy(), reference.policy_gradient_loss(log_prob, advantage))


def test_the_advantage_is_held_constant() -> None:
    log_prob, _, advantage = tensor_samples(1)
    log_prob.requires_grad_()
    advantage.requires_grad_()
    policy_gradient_loss(log_prob, advantage).sum().backward()  # type: ignore[no-untyped-call]
    assert advantage.grad is None
    assert log_prob.grad is not None
    torch.testing.assert_close(log_prob.grad, -advantage.detach())


@given(SEEDS, st.sampled_from([0.0, 0.1, 0.2, 0.5]))
@FUZZ
def test_clipped_surrogate_loss(seed: int, clip: float) -> None:
    samples = random_samples(seed)
    loss, ratio = clipped_surrogate_loss(*tensor_samples(seed), clip)
    expected_loss, expected_ratio = reference.clipped_surrogate_loss(*samples, clip)
    np.testing.assert_allclose(loss.numpy(), expected_loss, rtol=1e-10)
    np.testing.assert_allclose(ratio.numpy(), expected_ratio, rtol=1e-10)


@given(SEEDS)
@FUZZ
def test_the_clipped_surrogate_stops_pulling_beyond_the_clip(seed: int) -> None:
    new, old, advantage = tensor_samples(seed)
    new.requires_grad_()
    loss, ratio = clipped_surrogate_loss(new, old, advantage, 0.2)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    expected = [
        reference.clipped_surrogate_slope(r, a, 0.2)
        for r, a in zip(ratio.tolist(), advantage.tolist(), strict=True)
    ]
    assert 0 < expected.count(0.0) < len(expected)
    assert new.grad is not None
    np.testing.assert_allclose(new.grad.numpy(), expected, rtol=1e-10)


@given(SEEDS)
@FUZZ
def test_approximate_kl(seed: int) -> None:
    new, old, _ = random_samples(seed)
    found = approximate_kl(torch.from_numpy(new - old)).numpy()
    np.testing.assert_allclose(found, reference.approximate_kl(new - old), rtol=1e-8, atol=1e-14)
    assert (found >= 0).all()


def test_the_mean_of_approximate_kl_is_the_kl_divergence() -> None:
    old, new = np.array([0.2, 0.3, 0.5]), np.array([0.4, 0.4, 0.2])
    per_action = approximate_kl(torch.from_numpy(np.log(new / old))).numpy()
    assert math.isclose(old @ per_action, old @ np.log(old / new), rel_tol=1e-12)


@given(SEEDS, st.sampled_from([0.0, 0.5, 1.0]))
@FUZZ
def test_masked_mean_and_standardize(seed: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(3.0, 2.0, (6, 4))
    mask = (rng.random((6, 4)) < rate).astype(np.float64)
    tensors = torch.from_numpy(values), torch.from_numpy(mask)
    mean = masked_mean(*tensors)
    np.testing.assert_allclose(float(mean), reference.masked_mean(values, mask), rtol=1e-10)
    found = standardize(*tensors).numpy()
    if mask.any():
        expected = reference.standardize(values, mask)
        np.testing.assert_allclose(found[mask > 0], expected[mask > 0], rtol=1e-8, atol=1e-10)


def test_standardized_values_have_mean_zero_and_deviation_one() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(5.0, 3.0, 1000))
    found = standardize(values, torch.ones_like(values))
    assert abs(float(found.mean())) < 1e-12
    assert abs(float(found.std(unbiased=False)) - 1.0) < 1e-8


def test_equal_values_standardize_to_zero() -> None:
    found = standardize(torch.full((5,), 2.5), torch.ones(5))
    torch.testing.assert_close(found, torch.zeros(5))
