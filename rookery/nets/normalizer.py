"""Running mean and variance, kept as module buffers.

As buffers they travel and are saved with the weights: every actor normalises with exactly the
statistics of the version it acts under, and a checkpoint needs nothing beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Mean and variance of all samples seen so far (Chan et al.'s parallel update)."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        # float64: a float32 count stops growing at 2^24 samples.
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self._scale: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def update(self, samples: Tensor) -> None:
        """Add ``samples`` ``[N, *shape]``."""
        num = samples.shape[0]
        if num == 0:
            return
        batch = samples.to(torch.float64)
        batch_mean = batch.mean(0)
        batch_var = batch.var(0, unbiased=False)
        total = self.count + num
        delta = batch_mean - self.mean
        spread = self.var * self.count + batch_var * num + delta**2 * self.count * num / total
        self.mean += delta * num / total
        self.var.copy_(spread / total)
        self.count.copy_(total)
        self._scale = None

    def forget_cache(self) -> None:
        """Call after the buffers were written from outside."""
        self._scale = None

    def normalize(self, values: Tensor, clip: float = 10.0) -> Tensor:
        """``(values - mean) / std``, clipped; ``values`` ``[..., *shape]``."""
        if self._scale is None:
            std = torch.sqrt(self.var + 1e-8)
            self._scale = (self.mean / std).float(), (1.0 / std).float()
        offset, scale = self._scale
        return torch.clamp(values * scale - offset, -clip, clip)
