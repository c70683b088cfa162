"""Prioritised replay: how much a sequence is worth, and how to make up for choosing by that.

Shapes: T steps, B sequences, N sampled items.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence_priorities(error: Tensor, mask: Tensor, eta: float) -> Tensor:
    """``[B]`` of the masked errors ``[T, B]``: ``eta max|error| + (1 - eta) mean|error|``.

    (R2D2, https://openreview.net/forum?id=r1lyTjAqYX, section 2.3.) 0 where the mask is empty.
    """
    size = torch.where(mask, error.detach().abs(), torch.zeros_like(error))
    mean = size.sum(0) / mask.sum(0).clamp(min=1)
    return eta * size.amax(0) + (1.0 - eta) * mean


def importance_weights(probability: Tensor, beta: float) -> Tensor:
    """``[N]`` weights ``(K P(i))^-beta`` of the sampled items, divided by the largest of them.

    (https://arxiv.org/abs/1511.05952, section 3.4.) ``beta`` 1 makes up for the choice in full, 0
    not at all. K, the number of items there were to choose from, cancels in the division.
    """
    return (probability / probability.amin()) ** -beta
