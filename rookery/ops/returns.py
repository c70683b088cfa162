"""Returns and advantages over rollouts.

Shapes: T steps, B environments. Row ``t`` of ``value`` is V(s_t); row T is V of what was seen last.
"""

from __future__ import annotations

import torch
from torch import Tensor


def next_values(
    value: Tensor, terminated: Tensor, truncated: Tensor, final_value: Tensor
) -> Tensor:
    """``[T, B]`` value of what followed each step: 0 after an end by the task's own rules,
    ``final_value`` after a cut, V(s_{t+1}) otherwise.

    ``value`` is ``[T+1, B]``, the others ``[T, B]``.
    """
    following = torch.where(truncated, final_value, value[1:])
    return following.masked_fill(terminated, 0.0)


def generalized_advantages(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """``[T, B]`` generalised advantage estimates (https://arxiv.org/abs/1506.02438, eq. 16).

    ``lam = 0`` is the one-step advantage; ``lam = 1`` the return up to the end of the episode
    (Monte Carlo) or of the rollout (T-step, bootstrapped), less V(s_t).
    """
    if value.shape[0] != reward.shape[0] + 1:
        raise ValueError(f"value needs T+1 rows, got {value.shape[0]} for T={reward.shape[0]}")
    delta = reward + gamma * next_values(value, terminated, truncated, final_value) - value[:-1]
    carry = gamma * lam * (~(terminated | truncated)).to(delta.dtype)
    advantage = torch.empty_like(delta)
    following = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        following = torch.addcmul(delta[t], carry[t], following, out=advantage[t])
    return advantage


def vtrace(
    log_ratio: Tensor,
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    gamma: float,
    *,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """V-trace (https://arxiv.org/abs/1802.01561, section 4.1): value targets v_s and the advantages
    of the policy gradient, both ``[T, B]``.

    ``log_ratio`` is log pi(a|x) - log mu(a|x) of the policy to improve over the one that acted.
    The advantages are rho_s (r_s + gamma v_{s+1} - V(x_s)), weights included. With ``lam`` below 1
    (Remark 2) v_{s+1} there gives way to V(x_{s+1}) by 1 - lam, so that on-policy both outputs are
    those of :func:`generalized_advantages`.
    """
    if value.shape[0] != reward.shape[0] + 1:
        raise ValueError(f"value needs T+1 rows, got {value.shape[0]} for T={reward.shape[0]}")
    ratio = log_ratio.exp()
    rho, c = ratio.clamp(max=rho_bar), lam * ratio.clamp(max=c_bar)
    following = next_values(value, terminated, truncated, final_value)
    delta = reward + gamma * following - value[:-1]
    goes_on = gamma * (~(terminated | truncated)).to(delta.dtype)
    weighted, carry = rho * delta, goes_on * c
    excess = torch.empty_like(value)  # v_s - V(x_s); nothing is known beyond the last row
    excess[-1] = 0.0
    for t in range(delta.shape[0] - 1, -1, -1):
        torch.addcmul(weighted[t], carry[t], excess[t + 1], out=excess[t])
    advantage = rho * (delta + goes_on * lam * excess[1:])
    return value[:-1] + excess[:-1], advantage


def discounted_returns(reward: Tensor, reset: Tensor, start: Tensor, gamma: float) -> Tensor:
    """``[T, B]`` discounted sum of the rewards of the episode so far, from ``start`` ``[B]``.

    ``reset`` ``[T, B]`` marks rows whose observation begins an episode. Its variance is what reward
    normalisation divides by.
    """
    out = torch.empty_like(reward)
    past = start
    keep = gamma * (~reset).to(reward.dtype)
    for t in range(reward.shape[0]):
        past = torch.addcmul(reward[t], keep[t], past, out=out[t])
    return out
