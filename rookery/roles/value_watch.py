"""Whether values have climbed beyond what rewards can add up to: then learning has diverged."""

from __future__ import annotations

import math
from collections.abc import Callable

MARGIN = 1.1
"""Means of batches may pass the bound a little while all is well."""
PATIENCE_UPDATES = 100
"""In a row; a single batch says nothing."""


class ValueWatch:
    """Warns once.

    ::

        watch = ValueWatch(algorithm.most_value, warn)
        while learning:
            ...
            watch.look(value_mean, reward_peak, steps)
    """

    def __init__(self, most_value: Callable[[float], float], warn: Callable[[str], None]) -> None:
        """``most_value`` is what rewards of at most so much can add up to."""
        self.most_value, self.warn = most_value, warn
        self.peak = 0.0
        """The largest reward so far, without its sign."""
        self._beyond = 0
        self._told = False

    def look(self, value_mean: float, reward_peak: float, steps: int) -> None:
        """Note what a batch said, at ``steps`` of the run."""
        self.peak = max(self.peak, reward_peak)
        most = self.most_value(self.peak)
        beyond = math.isfinite(most) and abs(value_mean) > MARGIN * most > 0.0
        self._beyond = self._beyond + 1 if beyond else 0
        if self._beyond < PATIENCE_UPDATES or self._told:
            return
        self._told = True
        self.warn(
            f"at step {steps:,} values average {value_mean:.4g}, and rewards of at most "
            f"{self.peak:.4g} cannot add up to more than {most:.4g}: learning diverges; a "
            "lower --lr or a rarer target_every helps, and the best checkpoint is kept"
        )
