"""Memory of one process: for roles that take turns, or are threads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rookery.core.spec import Array, Arrays, ArraySpec

_ALIGN = 64
"""As shared memory lies: how numbers lie in memory decides how some kernels round."""


def allocate(specs: Mapping[str, ArraySpec]) -> Arrays:
    """The arrays of ``specs``, all zero."""
    return {name: _aligned(spec) for name, spec in specs.items()}


def _aligned(spec: ArraySpec) -> Array:
    raw = np.zeros(spec.num_bytes + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + spec.num_bytes].view(spec.dtype).reshape(spec.shape)
