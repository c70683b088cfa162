"""The objectives of ``rookery.ops.policy_gradient``, sample by sample."""

from __future__ import annotations

import math

import numpy as np

from rookery.core.spec import Array


def policy_gradient_loss(log_prob: Array, advantage: Array) -> Array:
    """``-log pi(a|s) A``."""
    return np.array([-lp * adv for lp, adv in zip(log_prob, advantage, strict=True)])


def clipped_surrogate_loss(
    log_prob: Array, old_log_prob: Array, advantage: Array, clip: float
) -> tuple[Array, Array]:
    """Eq. 7 of https://arxiv.org/abs/1707.06347, negated, by the cases of the paper's figure 1."""
    losses, ratios = [], []
    for new, old, adv in zip(log_prob, old_log_prob, advantage, strict=True):
        ratio = math.exp(new) / math.exp(old)
        if adv >= 0:
            objective = ratio * adv if ratio < 1 + clip else (1 + clip) * adv
        else:
            objective = ratio * adv if ratio > 1 - clip else (1 - clip) * adv
        losses.append(-objective)
        ratios.append(ratio)
    return np.array(losses), np.array(ratios)


def clipped_surrogate_slope(ratio: float, advantage: float, clip: float) -> float:
    """Derivative of the negated objective by the log-probability: none beyond the clip."""
    gained = ratio > 1 + clip if advantage >= 0 else ratio < 1 - clip
    return 0.0 if gained else -ratio * advantage


def approximate_kl(log_ratio: Array) -> Array:
    """``(r - 1) - log r``."""
    return np.array([(math.exp(x) - 1.0) - x for x in log_ratio])


def masked_mean(values: Array, mask: Array) -> float:
    """Mean over what the mask keeps; 0 of nothing."""
    kept = [value for value, keep in zip(values.flat, mask.flat, strict=True) if keep]
    return sum(kept) / len(kept) if kept else 0.0


def standardize(values: Array, mask: Array, eps: float = 1e-8) -> Array:
    """Shift and scale by the mean and deviation of what the mask keeps."""
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    return (values - mean) / (math.sqrt(variance) + eps)
