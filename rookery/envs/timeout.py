"""A deadline for code that may hang, carried by SIGALRM in the main thread.

::

    deadline = Deadline(60.0)
    try:
        with deadline:                 # about 3 us
            env.step(action)
    except TimeUp:
        ...                            # it took more than 60 s

Outside the main thread signals cannot be used, and the deadline does nothing.

The clock goes on while a process is stopped (Ctrl-Z, a scheduler). So the first alarm only asks
for a second one, a little later: code that did not hang has returned by then.

The handler is installed once and stays, since exchanging it costs more than a small step. Alarms
that no deadline set are passed on to the handler found before; a timer of somebody else's stands
still while a guarded block runs.
"""

from __future__ import annotations

import signal
import threading
from signal import ITIMER_REAL, setitimer
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any

_MAIN_THREAD = threading.main_thread().ident
CONFIRM_SECS = 5.0
"""The most between the first alarm and the second, and what is between all that follow: code that
swallows the exception must not hang for ever, and the block must have time to end by it."""


def certain_secs(secs: float) -> float:
    """When a deadline of ``secs`` has raised for certain."""
    return secs + min(secs, CONFIRM_SECS)


class TimeUp(BaseException):
    """Raised inside the code that took too long. Not an Exception, so that few handlers eat it."""


class _Alarm:
    """The one SIGALRM handler of this process."""

    def __init__(self) -> None:
        self.armed = False
        self.confirm_secs: float | None = None
        """How long after the first alarm the block is given; None: the first was heard."""
        self._before: Any = None

    def install(self) -> None:
        """Take SIGALRM over, unless that was done already. Main thread only."""
        found = signal.getsignal(signal.SIGALRM)
        if found != self.fire:
            self._before = found
            signal.signal(signal.SIGALRM, self.fire)

    def fire(self, signum: int, frame: FrameType | None) -> None:
        """Raise in the guarded block, or pass somebody else's alarm on."""
        if self.armed:
            if self.confirm_secs is None:
                raise TimeUp
            setitimer(ITIMER_REAL, self.confirm_secs, CONFIRM_SECS)
            self.confirm_secs = None
            return
        if callable(self._before):
            self._before(signum, frame)


_ALARM = _Alarm()


class Deadline:
    """Raises :class:`TimeUp` in the block it guards after ``secs`` s; reusable, not nested."""

    __slots__ = ("_installed", "_timer_before", "secs")

    def __init__(self, secs: float) -> None:
        self.secs = secs
        self._installed = False
        self._timer_before = (0.0, 0.0)

    def __enter__(self) -> None:
        if get_ident() != _MAIN_THREAD:
            return
        if not self._installed:
            _ALARM.install()
            self._installed = True
        _ALARM.armed = True
        self._timer_before = self._set_timer()

    def restart(self) -> None:
        """Give the guarded block the full time again."""
        if _ALARM.armed and get_ident() == _MAIN_THREAD:
            self._set_timer()

    def _set_timer(self) -> tuple[float, float]:
        """The timer that there was before."""
        _ALARM.confirm_secs = min(self.secs, CONFIRM_SECS)
        return setitimer(ITIMER_REAL, self.secs, CONFIRM_SECS)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if get_ident() == _MAIN_THREAD:
            _ALARM.armed = False
            setitimer(ITIMER_REAL, *self._timer_before)
