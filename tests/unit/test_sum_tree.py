"""The sum tree against plain sums."""

from __future__ import annotations

import numpy as np
import pytest

from rookery.replay.sum_tree import SumTree


def pairwise(weights: np.ndarray, size: int) -> float:
    """The sum as a tree makes it, from the weights alone."""
    level = np.zeros(size)
    level[: len(weights)] = weights
    while len(level) > 1:
        level = level[0::2] + level[1::2]
    return float(level[0])


@pytest.mark.parametrize("num_leaves", [1, 2, 5, 64, 1000])
def test_sums_are_those_of_the_weights_after_any_number_of_updates(num_leaves: int) -> None:
    """To the last bit: sums that are corrected by differences drift away."""
    rng = np.random.default_rng(num_leaves)
    tree, known = SumTree(num_leaves), np.zeros(num_leaves)
    for _ in range(1500):
        leaves = rng.integers(0, num_leaves, rng.integers(0, 9))
        weights = rng.choice([0.0, 1e-12, 1.0, 1e12], len(leaves)) * rng.random(len(leaves))
        tree.set(leaves, weights)
        for leaf, weight in zip(leaves, weights, strict=True):
            known[leaf] = weight
        if rng.random() < 0.3:
            assert tree.total == pairwise(known, 1 << (num_leaves - 1).bit_length())
    np.testing.assert_array_equal(tree.weights, known)
    fresh = SumTree(num_leaves)
    fresh.refill(known)
    assert fresh.total == tree.total
    np.testing.assert_array_equal(tree.get(np.arange(num_leaves)), known)


def test_odds_are_in_proportion_to_weights() -> None:
    rng = np.random.default_rng(0)
    weights = rng.random(37) * (rng.random(37) < 0.7)
    tree = SumTree(37)
    tree.refill(weights)
    counts = np.zeros(37)
    for _ in range(300):
        leaves, probability = tree.sample(100, rng)
        counts += np.bincount(leaves, minlength=37)
        np.testing.assert_allclose(probability, weights[leaves] / weights.sum(), rtol=1e-12)
    np.testing.assert_allclose(counts / 30_000, weights / weights.sum(), atol=0.003)
    assert counts[weights == 0].sum() == 0


def test_a_sample_is_spread_over_the_weights() -> None:
    """One from each of N equal parts: equal weights come once each."""
    tree = SumTree(64)
    tree.refill(np.ones(64))
    leaves, _ = tree.sample(64, np.random.default_rng(0))
    assert sorted(leaves.tolist()) == [*range(64)]


class Edge(np.random.Generator):
    """Draws the number nearest to 1."""

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        return np.full(size, np.nextafter(1.0, 0.0))


def test_rounding_never_leads_to_an_empty_leaf() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        weights = rng.choice([0.0, 0.1, 1e-17, 1e17], 13, p=[0.7, 0.1, 0.1, 0.1])
        weights[rng.integers(13)] = 0.3
        tree = SumTree(13)
        tree.refill(weights)
        leaves, _ = tree.sample(7, Edge(np.random.PCG64(0)))
        assert (weights[leaves] > 0).all()


def test_what_makes_no_sense_is_refused() -> None:
    tree = SumTree(4)
    with pytest.raises(ValueError, match="all weights are 0"):
        tree.sample(1, np.random.default_rng(0))
    for bad in (np.nan, np.inf, -1.0):
        with pytest.raises(ValueError, match="finite and not negative"):
            tree.set(np.array([0, 1]), np.array([1.0, bad]))
    for leaf in (-1, 4):
        with pytest.raises(IndexError, match=r"not within 0\.\.3"):
            tree.set(np.array([leaf]), np.array([1.0]))
    with pytest.raises(ValueError, match="3 weights for 4 leaves"):
        tree.refill(np.ones(3))
    with pytest.raises(ValueError, match="at least 1 leaf"):
        SumTree(0)
    assert tree.total == 0.0
