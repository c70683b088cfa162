"""Which policy of a family to act with next: bandits over the episodes of a sliding window.

A window is two arrays, oldest first: the arm of each episode (-1 where there was none yet) and what
it returned::

    counts, means, variances = window_statistics(arms, returns, num_arms)
    scores = ucb_scores(counts, means)
    arm = choose_arms(scores, explore, pick, random_share=0.5)   # two uniform draws
    arms, returns = push_outcome(arms, returns, arm, episode_return)

Shapes: W episodes in the window, A arms; leading axes before them are bandits of their own.
"""

from __future__ import annotations

import torch
from torch import Tensor


def push_outcome(
    arms: Tensor, returns: Tensor, arm: Tensor, episode_return: Tensor
) -> tuple[Tensor, Tensor]:
    """The windows ``[..., W]`` with one more outcome at the end and without the oldest."""
    return (
        torch.cat([arms[..., 1:], arm[..., None].to(arms.dtype)], -1),
        torch.cat([returns[..., 1:], episode_return[..., None].to(returns.dtype)], -1),
    )


def window_statistics(
    arms: Tensor, returns: Tensor, num_arms: int
) -> tuple[Tensor, Tensor, Tensor]:
    """``[..., A]`` how often each arm is in the window, mean and variance of what it returned.

    All 0 for an arm that is not there.
    """
    chosen = (arms[..., None] == torch.arange(num_arms, device=arms.device)).to(returns.dtype)
    counts = chosen.sum(-2)
    at_least_one = counts.clamp(min=1.0)
    means = (chosen * returns[..., None]).sum(-2) / at_least_one
    apart = (returns[..., None] - means[..., None, :]) ** 2
    return counts, means, (chosen * apart).sum(-2) / at_least_one


def scaled_returns(arms: Tensor, returns: Tensor) -> Tensor:
    """``[..., W]`` returns as places between the lowest and the highest of their window, 0 to 1.

    All 0 where they are alike. What stands where ``arms`` is -1 does not count, and is 0.
    """
    there = arms >= 0
    low = returns.masked_fill(~there, torch.inf).amin(-1, keepdim=True)
    high = returns.masked_fill(~there, -torch.inf).amax(-1, keepdim=True)
    apart = torch.where(high > low, high - low, torch.ones_like(high))
    return torch.where(there, (returns - low) / apart, torch.zeros_like(returns))


def ucb_scores(counts: Tensor, means: Tensor, bonus: float = 1.0) -> Tensor:
    """Agent57's sliding-window UCB: ``mean + bonus sqrt(1 / count)``, infinite for an unseen arm.

    (https://arxiv.org/abs/2003.13350, appendix D, the simplified form.)
    """
    return torch.where(counts > 0, means + bonus * counts.clamp(min=1.0) ** -0.5, torch.inf)


def ucb1_tuned_scores(counts: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """UCB1-tuned: ``mean + sqrt(ln n / count * min(1/4, variance + sqrt(2 ln n / count)))``.

    (https://link.springer.com/article/10.1023/A:1013689704352, section 4.) ``n`` is the number of
    outcomes in the window. 1/4 bounds the variance of a return between 0 and 1: scale them to that.
    Infinite for an unseen arm.
    """
    total = counts.sum(-1, keepdim=True).clamp(min=1.0)
    rate = total.log() / counts.clamp(min=1.0)
    spread = torch.clamp(variances + (2.0 * rate).sqrt(), max=0.25)
    return torch.where(counts > 0, means + (rate * spread).sqrt(), torch.inf)


def choose_arms(scores: Tensor, explore: Tensor, pick: Tensor, random_share: float) -> Tensor:
    """``[...]`` the arm of the highest score ``[..., A]``, or any with odds ``random_share``.

    ``explore`` and ``pick`` ``[...]`` are drawn uniformly from [0, 1) by the caller. Arms with the
    same score, such as all unseen ones, are equally likely.
    """
    best = scores == scores.amax(-1, keepdim=True)
    allowed = best | (explore < random_share)[..., None]
    rank = allowed.cumsum(-1)
    wanted = (pick * rank[..., -1]).floor().to(rank.dtype).minimum(rank[..., -1] - 1)
    return (rank > wanted[..., None]).to(torch.int8).argmax(-1)
