"""Running mean and variance, kept as module buffers.

As buffers they travel and are saved with the weights: every actor normalises with exactly the
statistics of the version it acts under, and a checkpoint needs nothing beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from rookery.core.spread import spread
from rookery.ops.policy_gradient import Total


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean and variance of some samples."""

    count: Tensor
    mean: Tensor
    var: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.count, self.mean, self.var))

    def packed(self) -> Tensor:
        """All of it in one row."""
        return torch.cat([part.reshape(-1) for part in self])

    @classmethod
    def unpacked(cls, row: Tensor, shape: torch.Size | tuple[int, ...]) -> Moments:
        """The inverse of :meth:`packed`."""
        mean, var = row[1:].view(2, -1)
        return cls(row[0], mean.view(shape), var.view(shape))

    def finite(self) -> bool:
        """Whether they can be those of samples."""
        return bool(torch.isfinite(self.packed()).all() and (self.var >= 0).all())

    def merged(self, other: Moments) -> Moments:
        """Those of both samples together (Chan et al.)."""
        count = self.count + other.count
        delta = other.mean - self.mean
        spread = (
            self.var * self.count
            + other.var * other.count
            + delta**2 * self.count * other.count / count
        )
        return Moments(count, self.mean + delta * other.count / count, spread / count)


class Pool(Protocol):
    """Where several who do not wait for each other put their samples together."""

    def add(self, samples: Tensor) -> Moments:
        """Add one's own ``samples`` ``[N, *shape]``; what all have added so far."""
        ...


def moments_of(
    samples: Tensor, shape: torch.Size, total: Total = lambda sums: sums
) -> Moments | None:
    """Those of ``samples`` ``[N, *shape]``, ``total`` added up over all who have some; None if
    nobody has."""
    batch = samples.to(torch.float64)
    sums = total(torch.cat([batch.new_tensor([len(batch)]), batch.sum(0).reshape(-1)]))
    num = sums[0]
    if num == 0:
        return None
    mean = (sums[1:] / num).view(shape)
    return Moments(num, mean, total(((batch - mean) ** 2).sum(0)) / num)


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
        self.pool: Pool | None = None

    @property
    def moments(self) -> Moments:
        """The buffers."""
        return Moments(self.count, self.mean, self.var)

    def take(self, moments: Moments) -> None:
        """Replace the statistics by ``moments``."""
        for mine, theirs in zip(self.moments, moments, strict=True):
            mine.copy_(theirs)
        self._scale = None

    @torch.no_grad()
    def update(self, samples: Tensor, total: Total = lambda sums: sums) -> None:
        """Add ``samples`` ``[N, *shape]``; ``total`` adds sums up over all who have some."""
        if self.pool is not None:
            self.take(self.pool.add(samples))
            return
        batch = moments_of(samples, self.mean.shape, total)
        if batch is not None:
            self.take(self.moments.merged(batch))

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


class PixelMoments(RunningMoments):
    """Those of each pixel of byte images ``[C, H, W]``: what seldom moves, as a ball, stands out.

    A few images of each batch are enough to know them.
    """

    LEAST_STD, CLIP, NUM_IMAGES = 8.0, 5.0, 64
    """A pixel's deviation counts as no smaller than this; values end at CLIP deviations."""
    UNSEEN_MEAN, UNSEEN_STD = 128.0, 64.0
    """Of a pixel of which nothing is known yet."""

    def update(self, samples: Tensor, total: Total = lambda sums: sums) -> None:
        """Add some of the images ``samples`` ``[N, C, H, W]``, of all environments."""
        some = spread(len(samples), self.NUM_IMAGES).to(samples.device)
        super().update(samples[some], total)

    def normalize(self, values: Tensor, clip: float = CLIP) -> Tensor:
        """As floats, laid out as the bytes ``values`` ``[N, C, H, W]`` are: by pixels."""
        if self._scale is None:
            seen = self.count > 0
            mean = torch.where(seen, self.mean, self.UNSEEN_MEAN)
            std = torch.sqrt(torch.where(seen, self.var, self.UNSEEN_STD**2) + self.LEAST_STD**2)
            shift, scale = (by_pixels(one[None].float())[0] for one in (-mean / std, 1 / std))
            self._scale = shift, scale
        shift, scale = self._scale
        return torch.addcmul(shift, values.to(torch.float32), scale).clamp_(-clip, clip)


def by_pixels(images: Tensor) -> Tensor:
    """The same images ``[N, C, H, W]`` with the channels of a pixel side by side in memory."""
    return torch.stack(images.unbind(1), -1).movedim(-1, 1)


def moments_in(module: nn.Module) -> dict[str, RunningMoments]:
    """The running statistics inside a module, by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, RunningMoments)}
