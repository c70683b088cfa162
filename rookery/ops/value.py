"""Value losses, per sample."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

ValueLoss = Literal["squared", "smooth_l1"]


def value_loss(value: Tensor, target: Tensor, kind: ValueLoss) -> Tensor:
    """Half the squared error, or the smooth L1 error, of each estimate."""
    if kind == "squared":
        return 0.5 * (value - target) ** 2
    return functional.smooth_l1_loss(value, target, reduction="none")


def clipped_value(value: Tensor, old_value: Tensor, clip: float) -> Tensor:
    """``value`` kept within ``clip`` of the estimate made when acting."""
    return old_value + torch.clamp(value - old_value, -clip, clip)
