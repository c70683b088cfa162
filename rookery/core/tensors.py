"""Leaves as tensors. Apart from ``spec.py`` so that environment processes never import torch."""

from __future__ import annotations

import torch

from rookery.core.spec import Array

Tensors = dict[str, torch.Tensor]

_ALIGNMENT = 64
"""Bytes; torch's own memory begins at multiples of it, NumPy's only at those of 16."""


def as_tensor(array: Array, device: torch.device) -> torch.Tensor:
    """``array`` on ``device``; on the CPU its memory is shared where that changes no result.

    Matrix products add in an order that depends on how their inputs lie in memory, so numbers that
    lie otherwise than torch's own are copied: a resumed run must round as one never stopped.
    """
    tensor = torch.from_numpy(array)
    if tensor.is_floating_point():
        tensor = tensor.contiguous()
        if tensor.data_ptr() % _ALIGNMENT:
            tensor = tensor.clone()
    return tensor.to(device)
