"""The value losses of ``rookery.ops.value``, sample by sample."""

from __future__ import annotations

import numpy as np

from rookery.core.spec import Array


def value_loss(value: Array, target: Array, kind: str) -> Array:
    """Half the squared error, or Huber's loss with its corner at 1."""
    losses = []
    for estimate, goal in zip(value, target, strict=True):
        error = abs(estimate - goal)
        if kind == "squared" or error < 1.0:
            losses.append(0.5 * error * error)
        else:
            losses.append(error - 0.5)
    return np.array(losses)


def clipped_value(value: Array, old_value: Array, clip: float) -> Array:
    """Neither above nor below the old estimate by more than ``clip``."""
    return np.array(
        [min(max(v, old - clip), old + clip) for v, old in zip(value, old_value, strict=True)]
    )
