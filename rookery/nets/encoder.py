"""From observation leaves as they are stored to float tensors a torso can read.

Discrete leaves become one-hot, images uint8 become 0..1 with channels first, floats may be
normalised by running statistics. Shapes: N samples.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rookery.core.spec import ACTION_MASK, LeafSpec, channels_are_last
from rookery.core.tensors import Tensors
from rookery.nets.normalizer import PixelMoments, RunningMoments, by_pixels
from rookery.ops.policy_gradient import Total


class Encoder(nn.Module):
    """Encode the leaves ``[N, ...]`` of an observation; ``shapes`` gives what comes out."""

    def __init__(
        self, leaves: Mapping[str, LeafSpec], normalize: bool, normalize_images: bool = False
    ) -> None:
        super().__init__()
        self.leaves = {name: leaf for name, leaf in leaves.items() if name != ACTION_MASK}
        self.shapes = {name: encoded_shape(leaf) for name, leaf in self.leaves.items()}
        self.moments = nn.ModuleDict()
        for name, leaf in self.leaves.items():
            if normalize and leaf.kind == "box" and leaf.dtype.kind == "f":
                self.moments[module_key(name)] = RunningMoments(leaf.shape)
            if normalize_images and _is_by_planes(leaf):
                self.moments[module_key(name)] = PixelMoments(leaf.shape)

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
        moments = self._moments(name)
        if isinstance(moments, PixelMoments):
            return moments.normalize(by_pixels(values))
        values = _as_float(values, leaf)
        if moments is not None:
            values = moments.normalize(values)
        return _channels_first(values, leaf.shape) if leaf.shape else values[:, None]

    def _moments(self, name: str) -> RunningMoments | None:
        if not self.moments:
            return None
        module = dict(self.moments.items()).get(module_key(name))
        return module if isinstance(module, RunningMoments) else None

    def update_moments(self, obs: Tensors, mask: Tensor, total: Total = lambda sums: sums) -> None:
        """Add the observations ``[T, B, ...]`` where ``mask`` ``[T, B]`` to the statistics."""
        for name in self.leaves:
            moments = self._moments(name)
            if moments is not None:
                moments.update(obs[name][mask], total)

    def forget_cache(self) -> None:
        """Call after buffers were written from outside."""
        for module in self.moments.values():
            assert isinstance(module, RunningMoments)
            module.forget_cache()


def _as_float(values: Tensor, leaf: LeafSpec) -> Tensor:
    """Floats ``[N, ...]``; bytes as 0..1. Images with their channels first are laid out by pixels,
    which convolutions train faster on: as bytes, of which there is less to move."""
    if leaf.dtype != np.uint8:
        return values.float()
    if _is_by_planes(leaf):
        values = by_pixels(values)
    return values.to(torch.float32).mul_(1.0 / 255.0)


def _is_by_planes(leaf: LeafSpec) -> bool:
    """Whether it is an image of bytes ``[C, H, W]``."""
    is_image = leaf.dtype == np.uint8 and len(leaf.shape) == 3
    return is_image and not channels_are_last(leaf.shape)


def encoded_shape(leaf: LeafSpec) -> tuple[int, ...]:
    """Shape of one encoded sample of ``leaf``."""
    if leaf.kind in ("discrete", "multi_discrete"):
        return (sum(leaf.sizes),)
    if not leaf.shape:
        return (1,)
    return tuple(_channels_first(torch.empty(1, *leaf.shape), leaf.shape).shape[1:])


def module_key(name: str) -> str:
    """The name of leaf ``name`` in a ModuleDict, which refuses dots and names it uses itself."""
    return "leaf/" + name.replace(".", "/")


def _channels_first(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Images ``[N, *shape]`` as ``[N, C, H, W]``, stacked ones joined; all else as it is."""
    if len(shape) not in (3, 4):
        return values
    if channels_are_last(shape):
        values = values.movedim(-1, -3)
    return values.flatten(1, 2) if len(shape) == 4 else values
