"""Leaves, actions and random numbers for networks.

Shapes: T steps, B environments.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rookery.core.spec import LeafSpec

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)
INT8 = np.dtype(np.int8)
UINT8 = np.dtype(np.uint8)

ACTIONS = {
    "discrete": LeafSpec("discrete", (), INT, (4,)),
    "multi_discrete": LeafSpec("multi_discrete", (3,), INT, (2, 3, 4)),
    "multi_binary": LeafSpec("multi_binary", (3,), INT8),
    "box": LeafSpec("box", (2,), FLOAT),
}

NAMES = ["obs", "inner.speed", "a.b.c", "type", "values", "pop", "0.1"]
"""Leaf names of nested spaces, some of which modules use themselves."""

T, B = 9, 4


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


def random_resets() -> Tensor:
    """Starts of episodes: at the beginning, at the end, two in a row, everywhere at once, never."""
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[0, 0] = reset[3, 0] = reset[4, 0] = True
    reset[T - 1, 1] = True
    reset[6, :3] = True
    return reset
