"""Intrinsic rewards against the algorithm as printed, and what must never become NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rookery.ops.intrinsic import (
    EpisodicDistance,
    RunningMoments,
    agent57_gammas,
    episodic_bonus,
    family_betas,
    intrinsic_rewards,
    life_long_factor,
    mixed_q_values,
    ngu_gammas,
    update_moments,
)
from tests.reference import intrinsic_reference as reference

SEEDS = st.integers(0, 2**32 - 1)
FUZZ = settings(max_examples=40, deadline=None, derandomize=True)
DOUBLE = torch.float64


def no_distance(batch: int) -> EpisodicDistance:
    return EpisodicDistance(torch.zeros(batch, dtype=DOUBLE), torch.zeros(batch, dtype=torch.int64))


def no_moments() -> RunningMoments:
    return RunningMoments(*torch.zeros(3, dtype=DOUBLE))


@given(SEEDS)
@FUZZ
def test_life_long_factor_and_intrinsic_rewards(seed: int) -> None:
    rng = np.random.default_rng(seed)
    error, episodic = rng.gamma(1.0, 3.0, 16), rng.random(16)
    mean, deviation = 2.0, float(rng.uniform(0.1, 3.0))
    moments = torch.tensor(mean, dtype=DOUBLE), torch.tensor(deviation, dtype=DOUBLE)
    factor = life_long_factor(torch.from_numpy(error), *moments).numpy()
    np.testing.assert_allclose(factor, reference.life_long_factor(error, mean, deviation))
    reward = intrinsic_rewards(torch.from_numpy(episodic), torch.from_numpy(error), *moments)
    expected = reference.intrinsic_rewards(episodic, error, mean, deviation)
    np.testing.assert_allclose(reward.numpy(), expected)
    assert factor.min() >= 1.0
    assert factor.max() <= 5.0


def test_the_factor_is_one_before_there_is_a_deviation() -> None:
    zero = torch.tensor(0.0)
    assert life_long_factor(torch.tensor([0.0, 3.0]), zero, zero).tolist() == [1.0, 1.0]


@given(SEEDS)
@FUZZ
def test_update_moments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    moments, seen = no_moments(), []
    for _ in range(4):
        values = rng.normal(5.0, 2.0, 6)
        mask = rng.random(6) < rng.choice([0.0, 0.5, 1.0])
        expected = reference.update_moments(seen, values, mask)
        seen += list(values[mask])
        moments = update_moments(moments, torch.from_numpy(values), torch.from_numpy(mask))
        np.testing.assert_allclose([float(moment) for moment in moments], expected, atol=1e-9)


def test_masked_values_never_reach_the_moments() -> None:
    values, mask = torch.tensor([1.0, torch.nan, torch.inf]), torch.tensor([True, False, False])
    moments = update_moments(no_moments(), values, mask)
    assert [float(moment) for moment in moments] == [1.0, 1.0, 0.0]


@given(SEEDS)
@FUZZ
def test_episodic_bonus(seed: int) -> None:
    """Over an episode whose memory fills, with near, far and identical points."""
    rng = np.random.default_rng(seed)
    batch, places, features, length = 3, 7, 2, 12
    memory = np.zeros((batch, places, features))
    filled = np.zeros((batch, places), np.bool_)
    distance, all_distances = no_distance(batch), [[] for _ in range(batch)]
    points = rng.choice([0.0, 0.01, 1.0, 3.0], size=(length, batch, features))
    for t in range(length):
        bonus, distance = episodic_bonus(
            *map(torch.from_numpy, (points[t], memory, filled)), distance, num_neighbours=4
        )
        expected = reference.episodic_bonus(
            points[t], memory, filled, all_distances, num_neighbours=4
        )
        np.testing.assert_allclose(bonus.numpy(), expected, rtol=1e-9)
        means = [sum(known) / max(len(known), 1) for known in all_distances]
        np.testing.assert_allclose(distance.mean.numpy(), means, rtol=1e-9, atol=1e-12)
        memory[:, t % places], filled[:, t % places] = points[t], True


def test_the_mean_distance_never_becomes_nan() -> None:
    """MarltasCore: episodic distance mean is NaN. Not for an empty memory, nor for one point."""
    memory, filled = torch.zeros(1, 4, 2), torch.zeros(1, 4, dtype=torch.bool)
    memory[:, 2:] = torch.nan  # what an unfilled place holds does not matter
    point, distance = torch.zeros(1, 2), EpisodicDistance(torch.zeros(1), torch.zeros(1))
    bonus, distance = episodic_bonus(point, memory, filled, distance)
    assert (bonus.item(), distance.mean.item(), distance.num.item()) == (0.0, 0.0, 0.0)
    filled[:, :2] = True
    for _ in range(3):
        bonus, distance = episodic_bonus(point, memory, filled, distance)
        assert distance.mean.item() == 0.0
        assert bonus.item() == pytest.approx(1 / (2**0.5 + 1e-3))  # both neighbours are the same
    assert distance.num.item() == 6


def test_new_is_worth_more_than_known_and_much_seen_is_worth_nothing() -> None:
    memory = torch.zeros(2, 100, 1)
    memory[:, 50:] = 5.0
    filled = torch.ones(2, 100, dtype=torch.bool)
    distance = EpisodicDistance(torch.ones(2), torch.ones(2))
    bonus, _ = episodic_bonus(torch.tensor([[0.0], [2.5]]), memory, filled, distance)
    assert bonus[1] > 10 * bonus[0] > 0
    capped, _ = episodic_bonus(
        torch.zeros(2, 1), memory, filled, distance, num_neighbours=50, max_similarity=7.0
    )
    assert capped.tolist() == [0.0, 0.0]  # sqrt(50) > 7


@given(SEEDS)
@FUZZ
def test_mixed_q_values(seed: int) -> None:
    extrinsic, intrinsic = np.random.default_rng(seed).normal(0.0, 5.0, (2, 8))
    found = mixed_q_values(
        torch.from_numpy(extrinsic), torch.from_numpy(intrinsic), torch.tensor(0.3, dtype=DOUBLE)
    )
    expected = reference.mixed_q_values(extrinsic, intrinsic, 0.3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_policies", [2, 3, 8, 32])
def test_family_betas(num_policies: int) -> None:
    found = family_betas(num_policies).numpy()
    np.testing.assert_allclose(found, reference.family_betas(num_policies), rtol=1e-6)
    assert (np.diff(found) > 0).all()
    assert (found[0], found[-1]) == (0.0, np.float32(0.3))


def test_a_family_of_one_does_not_explore() -> None:
    assert family_betas(1).tolist() == [0.0]
    assert ngu_gammas(1).tolist() == pytest.approx([0.997])


@pytest.mark.parametrize("num_policies", [2, 32])
def test_ngu_gammas(num_policies: int) -> None:
    found = ngu_gammas(num_policies).numpy()
    np.testing.assert_allclose(found, reference.ngu_gammas(num_policies), rtol=1e-6)
    np.testing.assert_allclose(found[[0, -1]], [0.997, 0.99], rtol=1e-6)


@pytest.mark.parametrize("num_policies", [10, 32])
def test_agent57_gammas(num_policies: int) -> None:
    found = agent57_gammas(num_policies).numpy()
    np.testing.assert_allclose(found, reference.agent57_gammas(num_policies), rtol=1e-6)
    np.testing.assert_allclose(found[[0, 7, 8, -1]], [0.9999, 0.997, 0.997, 0.99], rtol=1e-6)
    assert len(found) == num_policies
    assert (np.diff(found) <= 0).all()


def test_agent57_needs_its_corners() -> None:
    with pytest.raises(ValueError, match="at least 10 policies, got 9"):
        agent57_gammas(9)
