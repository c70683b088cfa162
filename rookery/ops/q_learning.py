"""Learning action values from sequences of steps.

Shapes: T steps, B sequences, A actions. Row ``t`` of ``value`` belongs to the observation of step
``t``; row T to what was seen last. A target of R2D2, all in one::

    value = unrescale(double_q_values(online[T+1, B, A], target[T+1, B, A]))
    goal = rescale(n_step_targets(reward, value, terminated, truncated, value[1:], gamma, n))
    error = td_errors(chosen, goal, learning_mask(valid, burn_in, n - 1))

Sequences from replay never cross the end of an episode: what follows an end is the last observation
of the episode itself, so ``value[1:]`` is ``final_value``. Rollouts cross ends and give their own.
"""

from __future__ import annotations

import torch
from torch import Tensor


def double_q_values(online: Tensor, target: Tensor, legal: Tensor | None = None) -> Tensor:
    """``[...]`` the target network's value of the action that the online network likes best.

    Double Q-learning (https://arxiv.org/abs/1509.06461, eq. 4). ``online`` and ``target`` are
    ``[..., A]``; ``legal`` ``[..., A]`` says which actions may be chosen, by default all. With
    ``online`` and ``target`` the same this is the maximum of plain Q-learning.
    """
    if legal is not None:
        online = online.masked_fill(~legal, -torch.inf)
    return target.gather(-1, online.argmax(-1, keepdim=True)).squeeze(-1)


def dueling_q_values(state_value: Tensor, advantage: Tensor) -> Tensor:
    """``[..., A]`` of ``state_value`` ``[..., 1]`` and ``advantage`` ``[..., A]``.

    Advantages count from their mean (https://arxiv.org/abs/1511.06581, eq. 9).
    """
    return state_value + advantage - advantage.mean(-1, keepdim=True)


def n_step_targets(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    gamma: Tensor | float,
    num_steps: int,
) -> Tensor:
    """``[T, B]`` sum of up to ``num_steps`` discounted rewards and the value of what follows them.

    (https://arxiv.org/abs/1803.00933, eq. 1.) The sum stops where the episode does: after
    ``terminated`` nothing follows, after ``truncated`` the value is ``final_value`` ``[T, B]``, and
    where row T comes first, ``value[T]``. ``value`` is ``[T+1, B]``, ``gamma`` a number or ``[B]``.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    total = reward.shape[0]
    if value.shape[0] != total + 1:
        raise ValueError(f"value needs T+1 rows, got {value.shape[0]} for T={total}")
    ended = terminated | truncated
    after_end = final_value.masked_fill(terminated, 0.0)
    # `target[t]` is the k-step target; one more step in front of that of t+1 makes k+1. Row T has
    # seen nothing, so its target of any k is its value.
    target = value
    for _ in range(num_steps):
        following = torch.where(ended, after_end, target[1:])
        target = torch.cat([reward + gamma * following, value[total:]])
    return target[:total]


def rescale(value: Tensor, eps: float = 1e-3) -> Tensor:
    """``h(z) = sign(z) (sqrt(|z| + 1) - 1) + eps z`` (https://arxiv.org/abs/1805.11593).

    Written as ``z / (sqrt(|z| + 1) + 1) + eps z``, which loses no digits of a small ``z``.
    """
    return value / (torch.sqrt(value.abs() + 1.0) + 1.0) + eps * value


def unrescale(value: Tensor, eps: float = 1e-3) -> Tensor:
    """The exact inverse of :func:`rescale`.

    With ``u = sqrt(|z| + 1) - 1`` the equation is ``eps u^2 + (1 + 2 eps) u = |h|``, and
    ``|z| = u (u + 2)``. The root is taken without a difference of near numbers: the form in the
    paper keeps three digits in float32.
    """
    size = value.abs()
    linear = 1.0 + 2.0 * eps
    root = 2.0 * size / (linear + torch.sqrt(linear**2 + 4.0 * eps * size))
    return torch.sign(value) * root * (root + 2.0)


def learning_mask(valid: Tensor, burn_in: int, lookahead: int) -> Tensor:
    """``[T, B]`` of ``valid`` ``[T, B]`` without the first and last rows, which are not learned.

    The first ``burn_in`` steps only bring the recurrent state up to date, the last ``lookahead``
    ones (n - 1 for n-step targets) are only looked at from the ones before.
    """
    if burn_in < 0 or lookahead < 0 or burn_in + lookahead >= valid.shape[0]:
        raise ValueError(
            f"burn_in={burn_in} and lookahead={lookahead} leave nothing of T={valid.shape[0]}"
        )
    mask = valid.clone()
    mask[:burn_in] = False
    mask[valid.shape[0] - lookahead :] = False
    return mask


def td_errors(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """``target - value``, the target held constant, and 0 outside of ``mask`` whatever is there."""
    return torch.where(mask, target.detach() - value, torch.zeros_like(value))
