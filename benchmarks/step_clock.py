"""Steps a second of whole updates, start-up left out: shared by the scripts of `atari.py`."""

from __future__ import annotations

import json
import time
from typing import Any


class StepClock:
    """Counts from the end of the first update to the end of the first one after ``secs``.

    The loop that calls it::

        clock = StepClock(secs)
        while not clock.over:
            steps += act_and_learn()
            clock.note(steps)
        clock.report()
    """

    def __init__(self, secs: float) -> None:
        self._secs = secs
        self._first: tuple[float, int] | None = None
        self._last = (0.0, 0)

    def note(self, steps: int) -> None:
        """An update has ended, after ``steps`` environment steps in all; ignored when over."""
        if self.over:
            return
        self._last = (time.perf_counter(), steps)
        self._first = self._first or self._last

    @property
    def over(self) -> bool:
        """Whether the time between the first and the last update is long enough."""
        return self._first is not None and self._last[0] - self._first[0] >= self._secs

    @property
    def rate(self) -> float:
        """Steps a second."""
        if self._first is None or self._last[0] <= self._first[0]:
            raise SystemExit("fewer than two updates were made; give it more time")
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])

    def report(self, **more: Any) -> None:
        """Print one JSON line: the rate, and ``more``."""
        print(json.dumps({"steps_per_s": self.rate, **more}), flush=True)
