"""How gradients travel to those who keep the weights: whole, as bfloat16, or the largest of them.

::

    writer = compression.writer(num)        # at the worker; may remember what it left out
    writer.write(gradient, arrays)          # arrays of compression.layout(num)
    compression.read(arrays, into)          # at the server

Shapes: N weights of one part, K that travel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import UserError
from rookery.core.spec import Arrays, ArraySpec

CompressionName = Literal["none", "bf16", "topk"]


class Writer(Protocol):
    """One worker's end, for one part of the gradient."""

    def write(self, gradient: Tensor, into: Arrays) -> None:
        """Put ``gradient`` ``[N]`` into the beginning of the arrays that travel."""
        ...


@dataclass(frozen=True)
class Compression:
    """One of the ways, and how much of a gradient travels by ``topk``."""

    name: CompressionName = "none"
    topk_share: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.topk_share <= 1:
            raise UserError(
                f"formation.topk_share: must be above 0 and at most 1, got {self.topk_share}"
            )

    def num_kept(self, num: int) -> int:
        """How many of ``num`` numbers travel by ``topk``."""
        return max(math.ceil(num * self.topk_share), 1)

    def layout(self, num: int) -> dict[str, ArraySpec]:
        """What travels of a gradient of at most ``num`` weights."""
        if self.name == "bf16":
            return {"gradient": ArraySpec((num,), np.dtype(np.int16))}
        if self.name == "topk":
            kept = self.num_kept(num)
            return {
                "gradient": ArraySpec((kept,), np.dtype(np.float32)),
                "places": ArraySpec((kept,), np.dtype(np.int32)),
            }
        return {"gradient": ArraySpec((num,), np.dtype(np.float32))}

    def writer(self, num: int) -> Writer:
        """A worker's end for a part of ``num`` weights."""
        if self.name == "bf16":
            return RoundedWriter()
        if self.name == "topk":
            return LargestWriter(num, self.num_kept(num))
        return WholeWriter()

    def read(self, arrays: Mapping[str, np.ndarray], into: Tensor) -> Tensor:
        """The gradient that was written, in ``into`` ``[N]`` or in place."""
        travelled = torch.from_numpy(arrays["gradient"])
        if self.name == "bf16":
            return into.copy_(travelled[: len(into)].view(torch.bfloat16))
        if self.name == "topk":
            into.zero_()
            kept = self.num_kept(len(into))
            places = torch.from_numpy(arrays["places"])[:kept].long().clamp_(0, len(into) - 1)
            return into.index_copy_(0, places, travelled[:kept])
        return travelled[: len(into)]


class WholeWriter:
    """Every number as it is."""

    def write(self, gradient: Tensor, into: Arrays) -> None:
        """A copy."""
        torch.from_numpy(into["gradient"])[: len(gradient)].copy_(gradient)


class RoundedWriter:
    """Every number rounded to bfloat16: two bytes, three decimal digits."""

    def write(self, gradient: Tensor, into: Arrays) -> None:
        """Rounded."""
        rounded = gradient.to(torch.bfloat16).view(torch.int16)
        torch.from_numpy(into["gradient"])[: len(gradient)].copy_(rounded)


class LargestWriter:
    """The largest numbers; what is left out is added to the next gradient (error feedback,
    https://arxiv.org/abs/1809.07599)."""

    def __init__(self, num: int, num_kept: int) -> None:
        self.left_out, self.num_kept = torch.zeros(num), num_kept

    def write(self, gradient: Tensor, into: Arrays) -> None:
        """Places and values of the largest."""
        total = self.left_out.add_(gradient.cpu())
        places = torch.topk(total.abs(), self.num_kept, sorted=False).indices
        kept = self.num_kept
        torch.from_numpy(into["gradient"])[:kept].copy_(total[places])
        torch.from_numpy(into["places"])[:kept].copy_(places)
        total[places] = 0.0
