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


def to_env_form(leaf: LeafSpec, action: Array) -> Array:
    """Actions ``[B, n]`` of a policy as ``Env.step`` takes them: ``[B, ...]`` of its own shape."""
    fitted = to_env_units(leaf, action)
    form = leaf.env_form
    if form is None:
        return fitted.reshape(len(action), *leaf.shape)
    moved = fitted.reshape(len(action), *leaf.shape).astype(form.dtype)
    if leaf.low is not None or leaf.high is not None:
        moved = np.clip(moved, leaf.low, leaf.high)  # rounding must not leave the bounds
    moved = moved.reshape(len(action), *form.shape)
    return moved + np.reshape(form.start, form.shape).astype(form.dtype) if form.start else moved


def from_env_form(leaf: LeafSpec, value: Array) -> Array:
    """An environment's own values, behind any batch axes, as they are carried."""
    form = leaf.env_form
    if form is None:
        return np.asarray(value, leaf.dtype)
    value = np.asarray(value)
    if form.start:
        value = value - np.reshape(form.start, form.shape)
    batch = value.shape[: value.ndim - len(form.shape)]
    return value.astype(leaf.dtype).reshape(*batch, *leaf.shape)
