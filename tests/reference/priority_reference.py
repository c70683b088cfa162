"""Priorities and importance weights, item by item."""

from __future__ import annotations

import numpy as np

from rookery.core.spec import Array


def sequence_priorities(error: Array, mask: Array, eta: float) -> Array:
    """``eta max_i |delta_i| + (1 - eta) mean |delta|`` over the steps that count."""
    out = np.zeros(error.shape[1])
    for b in range(error.shape[1]):
        sizes = [abs(error[t, b]) for t in range(error.shape[0]) if mask[t, b]]
        if sizes:
            out[b] = eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes)
    return out


def importance_weights(probability: Array, beta: float, num_items: int = 1) -> Array:
    """``w_i = (1/N 1/P(i))^beta / max_i w_i``."""
    weights = [(1 / num_items * 1 / chance) ** beta for chance in probability]
    return np.array([weight / max(weights) for weight in weights])
