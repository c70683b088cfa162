"""Rewards for the new: random network distillation and episodic memory, and the family of policies.

Never Give Up (https://arxiv.org/abs/2002.06038) and Agent57 (https://arxiv.org/abs/2003.13350).

Shapes: B environments, M places in the memory of each, D features, N policies of the family.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rookery.ops.q_learning import rescale, unrescale


def life_long_factor(error: Tensor, mean: Tensor, deviation: Tensor, limit: float = 5.0) -> Tensor:
    """``min(max(alpha, 1), limit)`` with ``alpha = 1 + (error - mean) / deviation``.

    (NGU, eq. 1 and section 2.) ``error`` is what the predictor of random features still gets wrong;
    ``mean`` and ``deviation`` are its running moments. 1 where there is no deviation yet.
    """
    known = deviation > 0
    alpha = 1.0 + (error - mean) / torch.where(known, deviation, torch.ones_like(deviation))
    return torch.where(known, alpha, torch.ones_like(alpha)).clamp(1.0, limit)


def intrinsic_rewards(
    episodic: Tensor, error: Tensor, mean: Tensor, deviation: Tensor, limit: float = 5.0
) -> Tensor:
    """The episodic bonus times :func:`life_long_factor` (NGU, eq. 1)."""
    return episodic * life_long_factor(error, mean, deviation, limit)


class RunningMoments(NamedTuple):
    """Number, mean and sum of squared deviations of all values so far, as scalar tensors."""

    num: Tensor
    mean: Tensor
    square: Tensor


def update_moments(moments: RunningMoments, values: Tensor, mask: Tensor) -> RunningMoments:
    """The moments with ``values`` where ``mask`` added (Chan, Golub, LeVeque 1979).

    The deviation is ``(square / num).sqrt()``; nothing divides by 0, also with an empty mask.
    """
    values = values.to(moments.mean.dtype)
    count = mask.sum().to(moments.num.dtype)
    kept = torch.where(mask, values, torch.zeros_like(values))
    mean = kept.sum() / count.clamp(min=1)
    square = torch.where(mask, (values - mean) ** 2, torch.zeros_like(values)).sum()
    total = moments.num + count
    shift = mean - moments.mean
    share = count / total.clamp(min=1)
    return RunningMoments(
        total,
        moments.mean + shift * share,
        moments.square + square + shift**2 * moments.num * share,
    )


class EpisodicDistance(NamedTuple):
    """Running mean ``[B]`` of squared distances to nearest neighbours, and their number."""

    mean: Tensor
    num: Tensor


def episodic_bonus(
    embedding: Tensor,
    memory: Tensor,
    filled: Tensor,
    distance: EpisodicDistance,
    num_neighbours: int = 10,
    kernel_eps: float = 1e-4,
    cluster_distance: float = 0.008,
    pseudo_count: float = 1e-3,
    max_similarity: float = 8.0,
) -> tuple[Tensor, EpisodicDistance]:
    """``[B]`` bonus for embeddings unlike those of the episode so far (NGU, algorithm 1).

    ``embedding`` ``[B, D]``, ``memory`` ``[B, M, D]``, ``filled`` ``[B, M]`` says which places hold
    something. Squared distances to the nearest neighbours are divided by their running mean, those
    below ``cluster_distance`` count as 0, and ``eps / (d + eps)`` is how alike two are. The bonus
    is one over the root of their sum plus ``pseudo_count``, and 0 beyond ``max_similarity``.

    Fewer neighbours than asked for are as many as there are; none give no bonus and leave the mean
    as it is. A mean of 0 says that all were the same: then so is this one. Nothing becomes NaN.
    """
    squared = ((memory - embedding[:, None]) ** 2).sum(-1)
    num_nearest = min(num_neighbours, memory.shape[1])
    found = squared.masked_fill(~filled, torch.inf).topk(num_nearest, largest=False).values
    real = found < torch.inf
    nearest = torch.where(real, found, torch.zeros_like(found))
    new = real.sum(-1)
    count = distance.num + new
    growth = nearest.sum(-1) - new * distance.mean
    mean = distance.mean + growth / count.clamp(min=1)
    apart = mean > 0
    scaled = nearest / torch.where(apart, mean, torch.ones_like(mean))[:, None]
    beyond = (scaled - cluster_distance).clamp(min=0.0)
    alike = torch.where(real, kernel_eps / (beyond + kernel_eps), torch.zeros_like(beyond))
    similarity = alike.sum(-1).sqrt() + pseudo_count
    none = (new == 0) | (similarity > max_similarity)
    bonus = (1.0 / similarity).masked_fill(none, 0.0)
    return bonus, EpisodicDistance(mean, count)


def mixed_q_values(extrinsic: Tensor, intrinsic: Tensor, beta: Tensor, eps: float = 1e-3) -> Tensor:
    """Agent57's ``Q = h(h^-1(Q_e) + beta h^-1(Q_i))`` (section 3.1), for rescaled values."""
    return rescale(unrescale(extrinsic, eps) + beta * unrescale(intrinsic, eps), eps)


def family_betas(num_policies: int, beta_max: float = 0.3) -> Tensor:
    """``[N]`` weights of the intrinsic reward (NGU, appendix A): 0 first, ``beta_max`` last."""
    if num_policies == 1:
        return torch.zeros(1)
    middle = max(num_policies - 2, 1)
    index = torch.arange(num_policies, dtype=torch.float64)
    betas = beta_max * torch.sigmoid(10.0 * (2.0 * index - middle) / middle)
    betas[0], betas[-1] = 0.0, beta_max
    return betas.to(torch.float32)


def ngu_gammas(num_policies: int, gamma_max: float = 0.997, gamma_min: float = 0.99) -> Tensor:
    """``[N]`` discounts (NGU, appendix A): ``log(1 - gamma)`` in even steps from max to min."""
    ends = math.log(1.0 - gamma_max), math.log(1.0 - gamma_min)
    return (1.0 - torch.linspace(*ends, num_policies, dtype=torch.float64).exp()).float()


def agent57_gammas(
    num_policies: int = 32, first: float = 0.9999, middle: float = 0.997, last: float = 0.99
) -> Tensor:
    """``[N]`` discounts of Agent57 (appendix G): ``first`` at 0, ``middle`` at 7, ``last`` at N-1.

    From 0 to 7 along a sigmoid, from 8 on in even steps of ``log(1 - gamma)``. The sigmoid falls,
    as the corner values ask for; the formula in the paper rises between 1 and 6.
    """
    if num_policies < 10:
        raise ValueError(f"the family of Agent57 has at least 10 policies, got {num_policies}")
    index = torch.arange(8, dtype=torch.float64)
    falling = first + (middle - first) * torch.sigmoid(10.0 * (2.0 * index - 6.0) / 6.0)
    falling[0], falling[7] = first, middle
    return torch.cat([falling.float(), ngu_gammas(num_policies - 8, middle, last)])
