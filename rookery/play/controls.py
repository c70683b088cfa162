"""What a watcher's keys do, and when the next moment is due; knows neither window nor terminal.

::

    controls = Controls(fps=15, speed=1.0)
    while not controls.quitting:
        for key in pressed():
            controls.press(key)
        if controls.take_due(secs_since_last_look):
            show(next(moments))
"""

from __future__ import annotations

from typing import Literal

Key = Literal["start", "pause", "faster", "slower", "step", "quit"]

SLOWEST, FASTEST = 1 / 16, 64.0
_MOST_AT_ONCE_SECS = 0.1
"""After a longer wait, such as for a window that was dragged, time is not made up for."""


class Controls:
    """Speed, pause and wishes."""

    def __init__(self, fps: float, speed: float = 1.0) -> None:
        self.fps = fps
        self.speed = min(max(speed, SLOWEST), FASTEST)
        self.paused = False
        self.quitting = False
        self.restart = False
        """Begin the next episode; whoever does it takes the wish back."""
        self._steps = 0
        self._credit = 1.0

    def press(self, key: Key) -> None:
        """Act on a key."""
        if key == "quit":
            self.quitting = True
        elif key == "pause":
            self.paused = not self.paused
            self._steps, self._credit = 0, 0.0
        elif key == "start":
            self.restart = True
        elif key == "step":
            self._steps += self.paused
        elif key in ("faster", "slower"):
            factor = 2.0 if key == "faster" else 0.5
            self.speed = min(max(self.speed * factor, SLOWEST), FASTEST)

    def pass_time(self, secs: float) -> None:
        """Real time has passed."""
        if not self.paused:
            self._credit += min(secs, _MOST_AT_ONCE_SECS) * self.fps * self.speed

    def take_due(self) -> bool:
        """Whether the next moment is due now; each answer of yes is for one."""
        if self.paused:
            due = self._steps > 0
            self._steps -= due
            return due
        if self._credit >= 1.0:
            self._credit -= 1.0
            return True
        return False

    def drop_due(self) -> None:
        """The machine is slower than the speed asked for: forget what it owes."""
        self._credit = min(self._credit, 1.0)

    @property
    def secs_to_next(self) -> float:
        """How long nothing will be due unless a key is pressed."""
        return max(1.0 - self._credit, 0.0) / (self.fps * self.speed)

    @property
    def words(self) -> str:
        """Speed, or that it is paused."""
        speed = f"{self.speed:g}" if self.speed >= 1 else f"1/{1 / self.speed:g}"
        return "paused" if self.paused else f"{speed}x"
