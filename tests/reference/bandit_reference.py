"""Bandits over a sliding window, as lists of outcomes."""

from __future__ import annotations

import math

import numpy as np

from rookery.core.spec import Array


def push_outcome(
    arms: list[int], returns: list[float], arm: int, episode_return: float
) -> tuple[list[int], list[float]]:
    """Forget the oldest, remember the newest."""
    return [*arms, arm][1:], [*returns, episode_return][1:]


def window_statistics(arms: Array, returns: Array, num_arms: int) -> tuple[Array, Array, Array]:
    """N(a), the mean and the variance of each arm."""
    counts, means, variances = np.zeros((3, num_arms))
    for arm in range(num_arms):
        mine = [r for a, r in zip(arms, returns, strict=True) if a == arm]
        if mine:
            counts[arm], means[arm] = len(mine), sum(mine) / len(mine)
            variances[arm] = sum((r - means[arm]) ** 2 for r in mine) / len(mine)
    return counts, means, variances


def scaled_returns(arms: Array, returns: Array) -> Array:
    """``(r - min) / (max - min)`` of the outcomes there are."""
    there = [r for a, r in zip(arms, returns, strict=True) if a >= 0]
    apart = (max(there) - min(there)) or 1.0 if there else 1.0
    return np.array(
        [(r - min(there)) / apart if a >= 0 else 0.0 for a, r in zip(arms, returns, strict=True)]
    )


def ucb_scores(counts: Array, means: Array, bonus: float = 1.0) -> Array:
    """``mean + beta sqrt(1 / N)``."""
    return np.array(
        [
            mean + bonus * math.sqrt(1 / count) if count else math.inf
            for count, mean in zip(counts, means, strict=True)
        ]
    )


def ucb1_tuned_scores(counts: Array, means: Array, variances: Array) -> Array:
    """``mean + sqrt(ln n / n_j min(1/4, V_j))``, ``V_j = variance + sqrt(2 ln n / n_j)``."""
    total, scores = sum(counts), []
    for count, mean, variance in zip(counts, means, variances, strict=True):
        if not count:
            scores.append(math.inf)
            continue
        bound = variance + math.sqrt(2 * math.log(total) / count)
        scores.append(mean + math.sqrt(math.log(total) / count * min(0.25, bound)))
    return np.array(scores)


def choose_arms(scores: Array, explore: float, pick: float, random_share: float) -> int:
    """Any arm with odds ``random_share``, else one of the best."""
    if explore < random_share:
        arms = list(range(len(scores)))
    else:
        arms = [arm for arm, score in enumerate(scores) if score == max(scores)]
    return arms[int(pick * len(arms))]
