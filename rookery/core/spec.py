"""Descriptions of arrays: what an observation, an action or a rollout field looks like.

Observations of any supported space are carried as a flat mapping of **leaves**: ``{"obs": array}``
for a plain space, ``{"camera": ..., "inner.speed": ...}`` for nested Dict and Tuple spaces. One
shape of data everywhere means that buffers, networks and transports never branch on spaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

LeafKind = Literal["box", "discrete", "multi_discrete", "multi_binary"]

ACTION_MASK = "action_mask"
"""Name of the leaf that holds an action mask, when the environment gives one."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape (without batch axes) and dtype of one array, and what its values may be.

    ``sizes``: they are choices, from 0, of so many for each element, or for all. ``finite``: none
    is infinite or NaN. Who takes arrays of another machine looks, as they are indices and sums
    later; nobody else does.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sizes: tuple[int, ...] = ()
    finite: bool = False

    def with_axes(self, *axes: int) -> ArraySpec:
        """The same array behind leading ``axes``, such as ``[T, B]``."""
        return replace(self, shape=(*axes, *self.shape))

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole array."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class EnvForm:
    """How an environment itself writes the values of a leaf."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: tuple[int, ...] = ()
    """The first choice of each element of a discrete kind; () where choices count from 0."""


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One leaf of an observation or action space.

    ``sizes`` holds the number of choices of each element for the two discrete kinds;
    ``low``/``high`` are the bounds of a box (None where it is unbounded); ``env_form`` says how the
    environment writes its values, where that is not how they are carried.
    """

    kind: LeafKind
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sizes: tuple[int, ...] = ()
    low: Array | None = None
    high: Array | None = None
    env_form: EnvForm | None = None

    @property
    def array(self) -> ArraySpec:
        """Shape, dtype and choices only."""
        return ArraySpec(self.shape, self.dtype, self.sizes)


LeafSpecs = Mapping[str, LeafSpec]


def zeros(specs: Mapping[str, ArraySpec]) -> Arrays:
    """Allocate ordinary memory for ``specs``."""
    return {name: np.zeros(spec.shape, spec.dtype) for name, spec in specs.items()}


def under(prefix: str, arrays: Mapping[str, Array]) -> Arrays:
    """The arrays whose names begin with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


MAX_CHANNELS = 16
"""An image's last axis up to this size, and not larger than its first, is taken for channels."""


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """Whether images of ``shape`` are ``[..., H, W, C]``, not ``[..., C, H, W]``."""
    return shape[-1] <= MAX_CHANNELS and shape[-1] <= shape[-3]
