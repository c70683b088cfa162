"""Bandits against lists of outcomes; unseen arms, ties and the random share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.core.spec import Array
from rookery.ops.bandit import (
    choose_arms,
    push_outcome,
    scaled_returns,
    ucb1_tuned_scores,
    ucb_scores,
    window_statistics,
)
from tests.reference import bandit_reference as reference

SEEDS = st.integers(0, 2**32 - 1)
FUZZ = settings(max_examples=40, deadline=None, derandomize=True)
NUM_ARMS = 5


def random_window(seed: int) -> tuple[Array, Array]:
    """Some places empty, some arms unseen."""
    rng = np.random.default_rng(seed)
    arms = rng.integers(0, rng.integers(1, NUM_ARMS + 1), 20)
    arms[: rng.integers(0, 19)] = -1
    return arms, rng.random(20)


@given(SEEDS)
@FUZZ
def test_statistics_and_scores(seed: int) -> None:
    arms, returns = random_window(seed)
    found = window_statistics(torch.from_numpy(arms), torch.from_numpy(returns), NUM_ARMS)
    expected = reference.window_statistics(arms, returns, NUM_ARMS)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, atol=1e-12)
    scaled = scaled_returns(torch.from_numpy(arms), torch.from_numpy(returns))
    np.testing.assert_allclose(scaled.numpy(), reference.scaled_returns(arms, returns))
    np.testing.assert_allclose(ucb_scores(*found[:2]).numpy(), reference.ucb_scores(*expected[:2]))
    np.testing.assert_allclose(
        ucb1_tuned_scores(*found).numpy(), reference.ucb1_tuned_scores(*expected)
    )


def test_returns_that_are_alike_are_scaled_to_nothing() -> None:
    arms, returns = torch.tensor([-1, 2, 0]), torch.tensor([9.0, 5.0, 5.0])
    assert scaled_returns(arms, returns).tolist() == [0.0, 0.0, 0.0]
    assert scaled_returns(torch.full((3,), -1), returns).tolist() == [0.0, 0.0, 0.0]


def test_each_row_belongs_to_its_own_arm() -> None:
    """MarltasCore: UCB rows off by one. What an arm returned is told of that arm, at once."""
    arms, returns = torch.full((4,), -1), torch.zeros(4)
    for arm, episode_return in [(1, 10.0), (0, 1.0), (1, 20.0)]:
        arms, returns = push_outcome(arms, returns, torch.tensor(arm), torch.tensor(episode_return))
    counts, means, _ = window_statistics(arms, returns, 3)
    assert counts.tolist() == [1.0, 2.0, 0.0]
    assert means.tolist() == [1.0, 15.0, 0.0]
    for _ in range(4):  # the window holds the last four and forgets the rest
        arms, returns = push_outcome(arms, returns, torch.tensor(2), torch.tensor(7.0))
    assert window_statistics(arms, returns, 3)[0].tolist() == [0.0, 0.0, 4.0]


@given(SEEDS)
@FUZZ
def test_push_outcome(seed: int) -> None:
    arms, returns = random_window(seed)
    found = push_outcome(
        torch.from_numpy(arms), torch.from_numpy(returns), torch.tensor(3), torch.tensor(0.5)
    )
    expected = reference.push_outcome(arms.tolist(), returns.tolist(), 3, 0.5)
    assert [part.tolist() for part in found] == [*expected]


@given(SEEDS, st.sampled_from([0.0, 0.1, 1.0]))
@FUZZ
def test_choose_arms(seed: int, random_share: float) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.choice([0.0, 1.0, np.inf], (8, NUM_ARMS))
    explore, pick = rng.random((2, 8))
    found = choose_arms(*map(torch.from_numpy, (scores, explore, pick)), random_share)
    expected = [
        reference.choose_arms(scores[b], explore[b], pick[b], random_share) for b in range(8)
    ]
    assert found.tolist() == expected


def test_all_arms_are_tried_before_any_again() -> None:
    arms, returns = torch.full((16,), -1), torch.zeros(16)
    rng = np.random.default_rng(0)
    tried = []
    for _ in range(NUM_ARMS):
        scores = ucb_scores(*window_statistics(arms, returns, NUM_ARMS)[:2])
        arm = choose_arms(scores, *torch.from_numpy(rng.random(2)), random_share=0.0)
        arms, returns = push_outcome(arms, returns, arm, torch.tensor(100.0))
        tried.append(arm.item())
    assert sorted(tried) == [*range(NUM_ARMS)]
    assert tried != sorted(tried)  # not the first of the equals


@pytest.mark.parametrize("random_share", [0.0, 0.5])
def test_the_random_share_is_what_it_says(random_share: float) -> None:
    draws = torch.from_numpy(np.random.default_rng(0).random((2, 20_000)))
    scores = torch.tensor([0.0, 1.0, 1.0, 0.5]).expand(20_000, 4)
    shares = torch.bincount(choose_arms(scores, *draws, random_share), minlength=4) / 20_000
    expected = random_share / 4 + (1 - random_share) * np.array([0.0, 0.5, 0.5, 0.0])
    np.testing.assert_allclose(shares.numpy(), expected, atol=0.01)


def test_the_last_arm_can_be_picked_and_none_beyond() -> None:
    almost_one = torch.tensor(np.nextafter(np.float32(1), np.float32(0)))
    zero, scores = torch.tensor(0.0), torch.zeros(NUM_ARMS)
    assert choose_arms(scores, zero, almost_one, 1.0).item() == NUM_ARMS - 1
    assert choose_arms(scores, zero, zero, 1.0).item() == 0
