"""The mean of the weights along their updates, older ones fading.

With a constant step weights wander around what they converge to, and their mean is nearer to it
than any of them (Polyak; https://arxiv.org/abs/1803.05407). Learning goes on with the weights as
they are; the mean is what is saved, evaluated and shown::

    mean = MeanWeights(flat.data, num_updates=100)
    while learning:
        ...                                  # an update changes flat.data
        mean.add()
"""

from __future__ import annotations

import torch
from torch import Tensor


class MeanWeights:
    """The mean of ``data`` ``[P]`` over about the last ``num_updates`` calls of :meth:`add`."""

    def __init__(self, data: Tensor, num_updates: int) -> None:
        self.data, self.num_updates = data, num_updates
        self.mean = data.clone()
        self.count = 0

    @torch.no_grad()
    def add(self) -> None:
        """Count the weights as they are now in; at first all weigh the same."""
        self.count += 1
        self.mean.lerp_(self.data, 1.0 / min(self.count, self.num_updates))

    def restart(self, count: int = 0) -> None:
        """Take ``data`` for the mean of ``count`` updates."""
        self.mean.copy_(self.data)
        self.count = count
