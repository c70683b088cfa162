"""A policy whose answers are the same on every kind of processor.

Float32 matrix products round otherwise on each kind of processor and for each number of rows. A
last bit is enough: a walker steps otherwise, and falls on another day. Here they are computed in
double precision and rounded to float32 afterwards, which hides in what order they were added up.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from rookery.nets.policy import Policy

_DENSE = (nn.Linear, nn.GRU, nn.LSTM)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def rounded_alike(policy: Policy) -> Policy:
    """A copy of ``policy`` to play with; itself where double precision is dear or may not fit.

    That is on a GPU, with convolutions, in bf16, and with a torso that is code of the user's.
    """
    if (
        policy.device.type != "cpu"
        or policy.config.precision == "bf16"
        or ":" in policy.config.torso
        or any(isinstance(module, _CONVOLUTIONS) for module in policy.modules())
    ):
        return policy
    policy = copy.deepcopy(policy)
    for module in policy.modules():
        if isinstance(module, _DENSE):
            module.double()
            module.register_forward_pre_hook(_widen)
            module.register_forward_hook(_narrow)
    return policy


def _widen(module: nn.Module, given: Any) -> Any:
    return _as(given, torch.float64)


def _narrow(module: nn.Module, given: Any, output: Any) -> Any:
    return _as(output, torch.float32)


def _as(value: Any, dtype: torch.dtype) -> Any:
    """Tensors, or tuples of them, in another precision."""
    return value.to(dtype) if isinstance(value, Tensor) else tuple(_as(it, dtype) for it in value)
