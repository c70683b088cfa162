"""What the first layer of a policy gave the last time it was asked.

::

    tap = FirstLayer(policy)
    policy.step(obs, state, reset, rng)
    tap.output()                     # [units] of row 0; None if the policy has no layer

Shapes: N rows, C channels.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rookery.core.spec import Array
from rookery.nets.policy import Policy

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)


class FirstLayer:
    """Listens to the first layer of a policy's torso, after its activation."""

    def __init__(self, policy: Policy) -> None:
        self._output: Tensor | None = None
        layer = _first_layer(policy.torso)
        if layer is not None:
            layer.register_forward_hook(self._hear)

    def _hear(self, module: nn.Module, given: Any, output: Tensor) -> None:
        self._output = output[0].detach()

    def output(self) -> Array | None:
        """One number a unit; for a convolution the mean of each channel ``[C, ...]``."""
        if self._output is None:
            return None
        units = self._output
        flat = units if units.ndim < 2 else units.flatten(1).mean(1)
        array: Array = flat.float().cpu().numpy().copy()
        return array


def _first_layer(torso: Any) -> nn.Module | None:
    if not isinstance(torso, nn.Module):
        return None
    for parent in torso.modules():
        children = list(parent.children())
        for place, child in enumerate(children):
            if isinstance(child, _LAYERS):
                after = children[place + 1 : place + 2] if isinstance(parent, nn.Sequential) else []
                return after[0] if after and _is_activation(after[0]) else child
    return None


def _is_activation(module: nn.Module) -> bool:
    """Whether a module only bends values: it has neither weights nor parts."""
    return not list(module.parameters()) and not list(module.children())
