"""From observation leaves as they are stored to float tensors a torso can read.

Discrete leaves become one-hot, images uint8 become 0..1 with channels first, floats may be
normalised by running statistics. Shapes: N samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from rookery.core.spec import ACTION_MASK, LeafSpec
from rookery.core.tensors import Tensors
from rookery.nets.normalizer import RunningMoments

MAX_CHANNELS = 16
"""An image's last axis up to this size, and not larger than its first, is taken for channels."""


class Encoder(nn.Module):
    """Encode the leaves ``[N, ...]`` of an observation; ``shapes`` gives what comes out."""

    def __init__(self, leaves: Mapping[str, LeafSpec], normalize: bool) -> None:
        super().__init__()
        self.leaves = {name: leaf for name, leaf in leaves.items() if name != ACTION_MASK}
        self.shapes = {name: encoded_shape(leaf) for name, leaf in self.leaves.items()}
        self.moments = nn.ModuleDict()
        if normalize:
            for name, leaf in self.leaves.items():
                if leaf.kind == "box" and leaf.dtype.kind == "f":
                    # ModuleDict refuses dots in names.
                    self.moments[name.replace(".", "/")] = RunningMoments(leaf.shape)

    def forward(self, obs: Tensors) -> Tensors:
        """Encoded leaves ``[N, *shapes[name]]``."""
        return {name: self._encode(name, leaf, obs[name]) for name, leaf in self.leaves.items()}

    def _encode(self, name: str, leaf: LeafSpec, values: Tensor) -> Tensor:
        if leaf.kind == "discrete":
            return functional.one_hot(values, leaf.sizes[0]).float()
        if leaf.kind == "multi_discrete":
            columns = [
                functional.one_hot(values[..., i], size) for i, size in enumerate(leaf.sizes)
            ]
            return torch.cat(columns, -1).float()
        values = values.float()
        if leaf.dtype.kind == "u":
            values = values.mul_(1.0 / 255.0)
        moments = self._moments(name)
        if moments is not None:
            values = moments.normalize(values)
        return _channels_first(values, leaf) if len(leaf.shape) >= 3 else values

    def _moments(self, name: str) -> RunningMoments | None:
        if not self.moments:
            return None
        module = dict(self.moments.items()).get(name.replace(".", "/"))
        return module if isinstance(module, RunningMoments) else None

    def update_moments(self, obs: Tensors, mask: Tensor) -> None:
        """Add the observations ``[T, B, ...]`` where ``mask`` ``[T, B]`` to the statistics."""
        for name in self.leaves:
            moments = self._moments(name)
            if moments is not None:
                moments.update(obs[name][mask])

    def forget_cache(self) -> None:
        """Call after buffers were written from outside."""
        for module in self.moments.values():
            assert isinstance(module, RunningMoments)
            module.forget_cache()


def encoded_shape(leaf: LeafSpec) -> tuple[int, ...]:
    """Shape of one encoded sample of ``leaf``."""
    if leaf.kind in ("discrete", "multi_discrete"):
        return (sum(leaf.sizes),)
    if len(leaf.shape) == 3:
        height, width, channels = leaf.shape
        return (channels, height, width) if _channels_last(leaf.shape) else leaf.shape
    if len(leaf.shape) == 4:  # stacked images
        stack, height, width, channels = leaf.shape
        return (stack * channels, height, width)
    return leaf.shape or (1,)


def _channels_last(shape: tuple[int, ...]) -> bool:
    return shape[-1] <= MAX_CHANNELS and shape[-1] <= shape[0]


def _channels_first(values: Tensor, leaf: LeafSpec) -> Tensor:
    if len(leaf.shape) == 4:
        return values.permute(0, 1, 4, 2, 3).flatten(1, 2)
    return values.permute(0, 3, 1, 2) if _channels_last(leaf.shape) else values
