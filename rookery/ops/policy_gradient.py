"""Policy-gradient losses, per sample; the caller averages over what counts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """``-log pi(a|s) * A``, the advantage held constant."""
    return -log_prob * advantage.detach()


def clipped_surrogate_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective, negated (https://arxiv.org/abs/1707.06347, eq. 7), and the ratio."""
    ratio = torch.exp(log_prob - old_log_prob)
    clipped = torch.clamp(ratio, 1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage), ratio


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """Per-sample estimate of KL(old || new): ``(r - 1) - log r``, unbiased and never negative."""
    return torch.expm1(log_ratio) - log_ratio


def masked_mean(values: Tensor, mask: Tensor, total: Total | None = None) -> Tensor:
    """Mean of ``values`` where ``mask`` (0 or 1, same shape).

    ``total`` adds sums up over all who hold a part of the values.
    """
    # A dot product reads both once; a loss of small batches is mostly the number of its kernels.
    masked, num = torch.dot(values.reshape(-1), mask.reshape(-1)), mask.sum()
    if total is not None:
        masked, num = total(torch.stack([masked, num]))
    return masked / num.clamp(min=1.0)


def standardize(
    values: Tensor, mask: Tensor, eps: float = 1e-8, total: Total | None = None
) -> Tensor:
    """``values`` shifted and scaled to mean 0 and deviation 1 over the masked entries."""
    mean = masked_mean(values, mask, total)
    deviation = masked_mean((values - mean) ** 2, mask, total).sqrt()
    return (values - mean) / (deviation + eps)
