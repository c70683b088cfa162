"""Priorities and importance weights against their formulas."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.ops.priority import importance_weights, sequence_priorities
from tests.reference import priority_reference as reference

SEEDS = st.integers(0, 2**32 - 1)
FUZZ = settings(max_examples=40, deadline=None, derandomize=True)


@given(SEEDS, st.sampled_from([0.0, 0.5, 0.9, 1.0]))
@FUZZ
def test_sequence_priorities(seed: int, eta: float) -> None:
    rng = np.random.default_rng(seed)
    error, mask = rng.normal(size=(7, 4)), rng.random((7, 4)) < 0.4
    found = sequence_priorities(torch.from_numpy(error), torch.from_numpy(mask), eta)
    expected = reference.sequence_priorities(error, mask, eta)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_padding_is_not_in_a_priority() -> None:
    """MarltasCore: loss mask wrong. A short tail has the priority of its real steps alone."""
    error = torch.tensor([[4.0], [2.0], [99.0], [torch.nan]])
    mask = torch.tensor([[True], [True], [False], [False]])
    assert np.isclose(sequence_priorities(error, mask, 0.9).item(), 0.9 * 4 + 0.1 * 3)
    assert sequence_priorities(error, torch.zeros_like(mask), 0.9).item() == 0.0


@given(SEEDS, st.sampled_from([0.0, 0.4, 0.6, 1.0]), st.integers(1, 10**6))
@FUZZ
def test_importance_weights(seed: int, beta: float, num_items: int) -> None:
    probability = np.random.default_rng(seed).random(16) / 16 + 1e-9
    found = importance_weights(torch.from_numpy(probability), beta).numpy()
    expected = reference.importance_weights(probability, beta, num_items)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found.max() == 1.0


def test_full_weights_make_up_for_the_choice() -> None:
    """With beta 1 a weighted mean over the choice is the plain mean, up to one factor."""
    priority, value = np.array([1.0, 2.0, 5.0]), np.array([3.0, -1.0, 4.0])
    chance = priority / priority.sum()
    weight = importance_weights(torch.from_numpy(chance), 1.0).numpy()
    assert np.isclose((chance * weight * value).sum() / (chance * weight).sum(), value.mean())
