"""Q-learning against slow sums, and the defects of systems 4 and 5 that concern it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core.spec import Array
from rookery.ops.q_learning import (
    double_q_values,
    dueling_q_values,
    learning_mask,
    n_step_targets,
    rescale,
    td_errors,
    unrescale,
)
from tests.reference import q_learning_reference as reference
from tests.reference.test_returns import random_steps

SEEDS = st.integers(0, 2**32 - 1)
FUZZ = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.mark.parametrize("masked", [False, True])
@given(SEEDS)
@FUZZ
def test_double_q_values(masked: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    online, target = rng.normal(size=(2, 5, 3, 4))
    legal = rng.random((5, 3, 4)) < 0.5
    legal[..., 2] = True  # something is always legal
    found = double_q_values(
        torch.from_numpy(online),
        torch.from_numpy(target),
        torch.from_numpy(legal) if masked else None,
    )
    expected = reference.double_q_values(online, target, legal if masked else None)
    np.testing.assert_array_equal(found.numpy(), expected)


@given(SEEDS)
@FUZZ
def test_dueling_q_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, advantage = rng.normal(size=(3, 2, 1)), rng.normal(size=(3, 2, 5))
    found = dueling_q_values(torch.from_numpy(value), torch.from_numpy(advantage)).numpy()
    np.testing.assert_allclose(found, reference.dueling_q_values(value, advantage), atol=1e-12)
    np.testing.assert_allclose(found.mean(-1), value[..., 0], atol=1e-12)


@given(SEEDS, st.integers(1, 14), st.booleans())
@FUZZ
def test_n_step_targets(seed: int, num_steps: int, own_gamma: bool) -> None:
    steps = random_steps(seed)
    batch = steps.reward.shape[1]
    gamma: Array = np.random.default_rng(seed).uniform(0.5, 1.0, batch if own_gamma else ())
    found = n_step_targets(*steps.tensors(), torch.from_numpy(np.asarray(gamma)), num_steps)
    expected = reference.n_step_targets(*steps, gamma, num_steps)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


def targets_around_an_end(**ends: bool) -> Array:
    """Five steps of reward 1 and value 100, the third of which ends the episode; final value 10."""
    flags = {name: torch.zeros(5, 1, dtype=torch.bool) for name in ("terminated", "truncated")}
    for name, ended in ends.items():
        flags[name][2] = ended
    values = torch.full((6, 1), 100.0)
    final = torch.full((5, 1), 10.0)
    return n_step_targets(
        torch.ones(5, 1), values, **flags, final_value=final, gamma=0.5, num_steps=3
    )[:, 0].numpy()


def test_targets_do_not_bootstrap_over_an_end() -> None:
    """MarltasCore: n-step targets bootstrap over the end of an episode."""
    ended = targets_around_an_end(terminated=True)
    np.testing.assert_allclose(ended[:3], [1.75, 1.5, 1.0])
    np.testing.assert_allclose(ended[3:], [1.5 + 25.0, 1.0 + 50.0])  # the next episode's own


def test_a_cut_bootstraps_from_its_last_observation() -> None:
    """A time limit is no end by the task's rules: the value of the final observation follows."""
    cut = targets_around_an_end(truncated=True)
    np.testing.assert_allclose(cut[:3], [1.75 + 10 / 8, 1.5 + 10 / 4, 1.0 + 10 / 2])


def test_a_flag_reached_ends_the_return() -> None:
    """RPC RL: reaching the flag was not stored as done, so its value went on for ever."""
    assert targets_around_an_end(terminated=True)[2] == 1.0
    assert targets_around_an_end()[2] > 1.0


def test_targets_refuse_what_cannot_be() -> None:
    steps = random_steps(0)
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        n_step_targets(*steps.tensors(), 0.9, 0)
    reward, value, *rest = steps.tensors()
    with pytest.raises(ValueError, match=r"value needs T\+1 rows"):
        n_step_targets(reward, value[1:], *rest, 0.9, 1)


@given(SEEDS)
@FUZZ
def test_rescale_and_unrescale(seed: int) -> None:
    value = np.random.default_rng(seed).normal(0.0, 50.0, 32)
    np.testing.assert_allclose(
        rescale(torch.from_numpy(value)).numpy(), reference.rescale(value), rtol=1e-9
    )
    np.testing.assert_allclose(
        unrescale(torch.from_numpy(value)).numpy(), reference.unrescale(value), rtol=1e-9
    )


@pytest.mark.parametrize("eps", [0.0, 1e-3, 1e-2])
def test_unrescale_is_exact_in_float32(eps: float) -> None:
    """Also near 0, where the printed form loses all but a few digits."""
    sizes = torch.logspace(-6, 5, 200)
    values = torch.cat([-sizes, torch.zeros(1), sizes])
    torch.testing.assert_close(unrescale(rescale(values, eps), eps), values, rtol=2e-6, atol=0.0)
    smallest = sizes[:1]
    printed = reference.unrescale(rescale(smallest).numpy(), 1e-3).astype(np.float32)
    assert abs(printed[0] / smallest[0] - 1.0) > 1e-3  # and so ours is needed


@given(SEEDS, st.integers(0, 4), st.integers(0, 4))
@FUZZ
def test_learning_mask(seed: int, burn_in: int, lookahead: int) -> None:
    valid = np.random.default_rng(seed).random((9, 3)) < 0.7
    found = learning_mask(torch.from_numpy(valid), burn_in, lookahead)
    np.testing.assert_array_equal(found.numpy(), reference.learning_mask(valid, burn_in, lookahead))


def test_learning_mask_leaves_something_and_its_argument_alone() -> None:
    valid = torch.ones(4, 2, dtype=torch.bool)
    assert learning_mask(valid, 2, 1).sum() == 2
    assert valid.all()
    with pytest.raises(ValueError, match="leave nothing of T=4"):
        learning_mask(valid, 2, 2)


@given(SEEDS)
@FUZZ
def test_td_errors(seed: int) -> None:
    rng = np.random.default_rng(seed)
    value, target = rng.normal(size=(2, 6, 3))
    mask = rng.random((6, 3)) < 0.5
    found = td_errors(*map(torch.from_numpy, (value, target, mask)))
    np.testing.assert_array_equal(found.numpy(), reference.td_errors(value, target, mask))


def test_what_is_masked_neither_counts_nor_learns() -> None:
    """MarltasCore: loss mask wrong. Burn-in and padding must not reach the loss or its gradient."""
    value = torch.tensor([[1.0], [2.0], [torch.nan]], requires_grad=True)
    target = torch.tensor([[torch.nan], [5.0], [1.0]], requires_grad=True)
    error = td_errors(value, target, torch.tensor([[False], [True], [False]]))
    assert error.flatten().tolist() == [0.0, 3.0, 0.0]
    error.sum().backward()
    assert value.grad is not None
    assert value.grad.flatten().tolist() == [0.0, -1.0, 0.0]
    assert target.grad is None  # targets are held constant
