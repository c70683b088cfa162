"""Value losses against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.ops.value import ValueLoss, clipped_value, value_loss
from tests.reference import value_reference as reference

SEEDS = st.integers(0, 2**32 - 1)
FUZZ = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("kind", ["squared", "smooth_l1"])
@given(seed=SEEDS)
@FUZZ
def test_value_loss(kind: ValueLoss, seed: int) -> None:
    value, target = np.random.default_rng(seed).normal(0.0, 2.0, (2, 32))
    found = value_loss(torch.from_numpy(value), torch.from_numpy(target), kind)
    np.testing.assert_allclose(found.numpy(), reference.value_loss(value, target, kind))


@given(SEEDS, st.sampled_from([0.1, 0.5, 5.0]))
@FUZZ
def test_clipped_value(seed: int, clip: float) -> None:
    value, old = np.random.default_rng(seed).normal(0.0, 1.0, (2, 32))
    found = clipped_value(torch.from_numpy(value), torch.from_numpy(old), clip)
    np.testing.assert_allclose(found.numpy(), reference.clipped_value(value, old, clip), atol=1e-12)
