"""Waiting that does not count the time in which this process stood still.

A run may be stopped and continued: by Ctrl-Z and ``fg``, by a scheduler that suspends jobs. All of
its processes stand still then, and the clock goes on; nobody is late for that. Whoever waits looks
again and again, so a long break between two looks is known for what it was.
"""

from __future__ import annotations

import time

STOOD_STILL_SECS = 5.0
"""A break between two looks that is longer was none of the waiting."""


class Patience:
    """A time-out.

    ::

        patience = Patience(600.0)
        while not there():
            sleep(0.2)
            if patience.over():
                raise RunFailed(...)
    """

    def __init__(self, secs: float) -> None:
        self.left = secs
        self.looked = time.monotonic()

    def over(self) -> bool:
        """Whether the time is up; to be asked much more often than every few seconds."""
        moment = time.monotonic()
        self.left -= min(moment - self.looked, STOOD_STILL_SECS)
        self.looked = moment
        return self.left <= 0.0


class Attention:
    """Since when somebody has looked without a long break."""

    def __init__(self) -> None:
        self.since = self.looked = time.monotonic()

    def look(self) -> float:
        """The moment before which nothing that stood still is to be blamed."""
        moment = time.monotonic()
        if moment - self.looked > STOOD_STILL_SECS:
            self.since = moment
        self.looked = moment
        return self.since
