"""Q-learning as the papers write it, one sequence and one step at a time."""

from __future__ import annotations

import numpy as np

from rookery.core.spec import Array


def double_q_values(online: Array, target: Array, legal: Array | None = None) -> Array:
    """``Q_target(s, argmax_a Q_online(s, a))`` over the legal actions."""
    out = np.zeros(online.shape[:-1])
    for at in np.ndindex(*out.shape):
        actions = [a for a in range(online.shape[-1]) if legal is None or legal[at][a]]
        best = max(actions, key=lambda a: online[at][a])
        out[at] = target[at][best]
    return out


def dueling_q_values(state_value: Array, advantage: Array) -> Array:
    """``V + A - mean A``."""
    out = np.zeros(advantage.shape)
    for at in np.ndindex(*advantage.shape[:-1]):
        for action in range(advantage.shape[-1]):
            above_mean = advantage[at][action] - sum(advantage[at]) / advantage.shape[-1]
            out[at][action] = state_value[at][0] + above_mean
    return out


def n_step_targets(
    reward: Array,
    value: Array,
    terminated: Array,
    truncated: Array,
    final_value: Array,
    gamma: Array | float,
    num_steps: int,
) -> Array:
    """``r_t + gamma r_{t+1} + ... + gamma^n V(s_{t+n})``, cut where the episode ends."""
    total, batch = reward.shape
    gammas = np.broadcast_to(gamma, (batch,))
    out = np.zeros((total, batch))
    for b in range(batch):
        for t in range(total):
            weight, at = 1.0, t
            while True:
                if at == min(t + num_steps, total):
                    out[t, b] += weight * value[at, b]
                    break
                out[t, b] += weight * reward[at, b]
                weight *= gammas[b]
                if terminated[at, b]:
                    break
                if truncated[at, b]:
                    out[t, b] += weight * final_value[at, b]
                    break
                at += 1
    return out


def rescale(value: Array, eps: float = 1e-3) -> Array:
    """``h`` as printed."""
    return np.array([np.sign(z) * (np.sqrt(abs(z) + 1) - 1) + eps * z for z in value])


def unrescale(value: Array, eps: float = 1e-3) -> Array:
    """``h^-1`` as printed (https://arxiv.org/abs/1805.11593, proposition A.2)."""
    return np.array(
        [
            np.sign(x) * (((np.sqrt(1 + 4 * eps * (abs(x) + 1 + eps)) - 1) / (2 * eps)) ** 2 - 1)
            for x in value
        ]
    )


def learning_mask(valid: Array, burn_in: int, lookahead: int) -> Array:
    """Real steps that are neither burnt in nor only looked at."""
    total = len(valid)
    return np.array(
        [
            [bool(real) and burn_in <= t < total - lookahead for real in valid[t]]
            for t in range(total)
        ]
    )


def td_errors(value: Array, target: Array, mask: Array) -> Array:
    """Target less estimate where it counts."""
    out = np.zeros(value.shape)
    for at in np.ndindex(*value.shape):
        if mask[at]:
            out[at] = target[at] - value[at]
    return out
