"""The 95 % interval of a mean, of few or many values."""

from __future__ import annotations

import math

_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Two-sided quantiles of Student's t for 1, 2, ... degrees of freedom."""


def half_width(deviation: float, num: int) -> float | None:
    """Half of the interval of the mean of ``num`` values; None of a single one, which has none."""
    if num < 2:
        return None
    freedom = num - 1
    if freedom <= len(_STUDENT):
        factor = _STUDENT[freedom - 1]
    else:  # the first terms of its series
        factor = 1.96 + 2.372 / freedom + 2.82 / freedom**2
    return factor * deviation / math.sqrt(num)
