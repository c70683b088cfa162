"""The recursions of ``rookery.ops.returns`` as sums over time, one environment at a time."""

from __future__ import annotations

import numpy as np

from rookery.core.spec import Array


def next_values(value: Array, terminated: Array, truncated: Array, final_value: Array) -> Array:
    """V of what followed each step."""
    num_steps, num_envs = terminated.shape
    out = np.zeros((num_steps, num_envs))
    for t in range(num_steps):
        for b in range(num_envs):
            if terminated[t, b]:
                out[t, b] = 0.0
            elif truncated[t, b]:
                out[t, b] = final_value[t, b]
            else:
                out[t, b] = value[t + 1, b]
    return out


def generalized_advantages(
    reward: Array,
    value: Array,
    terminated: Array,
    truncated: Array,
    final_value: Array,
    gamma: float,
    lam: float,
) -> Array:
    """Eq. 16 of https://arxiv.org/abs/1506.02438: the sum of ``(gamma lam)^l delta_{t+l}``.

    The sum ends with the episode, or with the rollout.
    """
    num_steps, num_envs = reward.shape
    following = next_values(value, terminated, truncated, final_value)
    advantage = np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        for t in range(num_steps):
            for later in range(t, num_steps):
                delta = reward[later, b] + gamma * following[later, b] - value[later, b]
                advantage[t, b] += (gamma * lam) ** (later - t) * delta
                if terminated[later, b] or truncated[later, b]:
                    break
    return advantage


def vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    terminated: Array,
    truncated: Array,
    final_value: Array,
    gamma: float,
    *,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    lam: float = 1.0,
) -> tuple[Array, Array]:
    """Eq. 1 of https://arxiv.org/abs/1802.01561, as the sum it is, and the policy's weight.

    ``v_s = V(x_s) + sum_t gamma^(t-s) (prod_{i=s}^{t-1} c_i) delta_t V``, which ends with the
    episode or the rollout.
    """
    num_steps, num_envs = reward.shape
    following = next_values(value, terminated, truncated, final_value)
    ends = terminated | truncated
    ratio = np.exp(log_ratio)
    rho = np.minimum(rho_bar, ratio)
    c = lam * np.minimum(c_bar, ratio)
    target = np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        for s in range(num_steps):
            target[s, b] = value[s, b]
            for t in range(s, num_steps):
                product = np.prod(c[s:t, b])
                delta = rho[t, b] * (reward[t, b] + gamma * following[t, b] - value[t, b])
                target[s, b] += gamma ** (t - s) * product * delta
                if ends[t, b]:
                    break
    advantage = np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        for s in range(num_steps):
            after = following[s, b]
            if not ends[s, b] and s + 1 < num_steps:
                after = lam * target[s + 1, b] + (1 - lam) * value[s + 1, b]
            advantage[s, b] = rho[s, b] * (reward[s, b] + gamma * after - value[s, b])
    return target, advantage


def discounted_returns(reward: Array, reset: Array, start: Array, gamma: float) -> Array:
    """``sum_k gamma^k r_{t-k}`` back to where the episode began, or to ``start``."""
    num_steps, num_envs = reward.shape
    out = np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        for t in range(num_steps):
            total, weight = 0.0, 1.0
            for earlier in range(t, -1, -1):
                total += weight * reward[earlier, b]
                weight *= gamma
                if reset[earlier, b]:
                    break
            else:
                total += weight * start[b]
            out[t, b] = total
    return out


def returns_to_go(
    reward: Array, terminated: Array, truncated: Array, value: Array, final: Array, gamma: float
) -> Array:
    """What really followed: to the end of the episode, or bootstrapped where it was cut off."""
    num_steps, num_envs = reward.shape
    out = np.zeros((num_steps, num_envs))
    for b in range(num_envs):
        for t in range(num_steps):
            total, weight = 0.0, 1.0
            for later in range(t, num_steps):
                total += weight * reward[later, b]
                weight *= gamma
                if terminated[later, b]:
                    break
                if truncated[later, b]:
                    total += weight * final[later, b]
                    break
            else:
                total += weight * value[num_steps, b]
            out[t, b] = total
    return out
