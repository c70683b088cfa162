"""Some of many, evenly spread whatever the many are made of.

Every k-th entry of a table that is read line by line may be of the same column again and again. So
one is taken from each of as many parts of equal size, each time at another place of the part.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = 0.6180339887498949
"""Multiples of it are spread evenly between whole numbers."""


def spread(total: int, num: int) -> Tensor:
    """``[min(num, total)]`` different numbers below ``total``, in order."""
    num = min(num, total)
    bounds = torch.arange(num + 1) * total // max(num, 1)
    place = torch.arange(num, dtype=torch.float64) * GOLDEN % 1.0
    return bounds[:-1] + (place * bounds.diff()).long()
