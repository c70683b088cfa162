"""Actions in the policy's units and in the environment's.

A policy models a bounded Box action in units where the bounds are -1 and 1, so that one scale of
exploration fits every environment; an unbounded one as it is. Discrete actions do not differ.
"""

from __future__ import annotations

import numpy as np

from rookery.core.spec import Array, LeafSpec

UNBOUNDED = 1e6
"""A bound beyond this says "none": rescaling to it would make every action huge."""


def to_env_units(leaf: LeafSpec, action: Array) -> Array:
    """The action ``[..., n]`` of a policy as the environment wants it, kept within bounds."""
    if leaf.kind != "box" or (leaf.low is None and leaf.high is None):
        return action
    low = np.float32(-np.inf) if leaf.low is None else leaf.low.reshape(-1)
    high = np.float32(np.inf) if leaf.high is None else leaf.high.reshape(-1)
    bounded = (np.abs(low) < UNBOUNDED) & (np.abs(high) < UNBOUNDED)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (high - low)
    free = np.clip(action, low, high)
    return np.where(bounded, scaled, free).astype(leaf.dtype, copy=False)
