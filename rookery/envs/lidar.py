"""Box2D's ray casts against the ground of a walker, for many walkers at once.

Every operation is the one that Box2D does, in its order and in its single precision, so that the
fractions are Box2D's to the bit.

Shapes: B walkers, R rays, E edges or polygons near a walker, V corners of a polygon; points are
``[..., 2]``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

MISSED = np.float32(1.0)
"""The fraction of a ray that meets nothing."""


def normals(sides: Floats) -> Floats:
    """Unit vectors to the right of ``sides`` ``[..., 2]``; zeros for a side without length."""
    right = np.stack([sides[..., 1], -sides[..., 0]], -1)
    length = np.sqrt(right[..., 0] * right[..., 0] + right[..., 1] * right[..., 1])
    short = length < np.finfo(np.float32).eps
    inverse = np.float32(1) / np.where(short, np.float32(1), length)
    unit: Floats = right * np.where(short, np.float32(0), inverse)[..., None]
    return unit


def edge_fractions(start: Floats, ray: Floats, begin: Floats, end: Floats) -> Floats:
    """How far along each ray the nearest edge is met, ``[B, R]``.

    ``start`` [B, 2], ``ray`` [B, R, 2]; edges from ``begin`` to ``end`` [B, E, 2].
    """
    side = end - begin
    normal = normals(side)
    away = begin - start[:, None]
    numerator = (normal[..., 0] * away[..., 0] + normal[..., 1] * away[..., 1])[:, None]
    across_x, across_y = ray[..., 0, None], ray[..., 1, None]
    denominator = normal[:, None, :, 0] * across_x + normal[:, None, :, 1] * across_y
    with np.errstate(divide="ignore", invalid="ignore"):
        t = numerator / denominator
        meets_x = start[:, None, None, 0] + t * across_x - begin[:, None, :, 0]
        meets_y = start[:, None, None, 1] + t * across_y - begin[:, None, :, 1]
        square = side[..., 0] * side[..., 0] + side[..., 1] * side[..., 1]
        along = meets_x * side[:, None, :, 0] + meets_y * side[:, None, :, 1]
        share = along / square[:, None]
        hit = (t >= 0) & (t <= 1) & (share >= 0) & (share <= 1)
    nearest: Floats = np.where(hit, t, MISSED).min(-1, initial=MISSED)
    return nearest


def polygon_fractions(start: Floats, ray: Floats, corners: Floats, normal: Floats) -> Floats:
    """How far along each ray the nearest convex polygon is met, ``[B, R]``.

    ``start`` [B, 2], ``ray`` [B, R, 2], ``corners`` and the ``normal`` of the side after each
    [B, E, V, 2]. A ray that begins inside a polygon does not meet it. One whose normals are all
    0 is never met.
    """
    shape = (*ray.shape[:2], corners.shape[1])
    lower, upper = np.zeros(shape, np.float32), np.ones(shape, np.float32)
    enters, misses = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    away = corners - start[:, None, None]
    numerators = normal[..., 0] * away[..., 0] + normal[..., 1] * away[..., 1]
    for corner in range(corners.shape[2]):
        numerator = numerators[:, None, :, corner]
        denominator = (
            normal[:, None, :, corner, 0] * ray[..., 0, None]
            + normal[:, None, :, corner, 1] * ray[..., 1, None]
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            t = numerator / denominator
        goes_in = (denominator < 0) & (numerator < lower * denominator)
        goes_out = (denominator > 0) & (numerator < upper * denominator)
        misses |= (denominator == 0) & (numerator < 0)
        lower, upper = np.where(goes_in, t, lower), np.where(goes_out, t, upper)
        enters |= goes_in
        misses |= upper < lower
    nearest: Floats = np.where(enters & ~misses, lower, MISSED).min(-1, initial=MISSED)
    return nearest
