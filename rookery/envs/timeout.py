"""A deadline for code that may hang: by SIGALRM in the main thread, by a watchdog in others.

::

    deadline = Deadline(60.0)
    try:
        with deadline:                 # about 3 us
            env.step(action)
    except TimeUp:
        ...                            # it took more than 60 s

No signal reaches other threads than the main one. There a watchdog has Python raise TimeUp at the
next line that the thread executes; one that does not come back from C code, such as a long sleep,
is told of in the log.

The clock goes on while a process is stopped (Ctrl-Z, a scheduler). So the first alarm only asks
for a second one, a little later: code that did not hang has returned by then.

The handler is installed once and stays, since exchanging it costs more than a small step. Alarms
that no deadline set are passed on to the handler found before; a timer of somebody else's stands
still while a guarded block runs.
"""

from __future__ import annotations

import ctypes
import logging
import math
import signal
import threading
import time
from dataclasses import dataclass
from signal import ITIMER_REAL, setitimer
from threading import get_ident
from types import FrameType, TracebackType
from typing import Any

_LOG = logging.getLogger(__name__)
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

LOOK_SECS = 0.2


@dataclass(slots=True)
class _Guarded:
    """A thread within a guarded block."""

    secs: float
    looks: int
    """How often the watchdog has yet to look before the time is up: a process that is stopped
    meanwhile loses none."""
    late: bool = False
    """Whether it was told already, and did not hear."""


class _Watchdog:
    """Watches threads other than the main one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guarded: dict[int, _Guarded] = {}
        self._thread: threading.Thread | None = None

    def guard(self, secs: float) -> None:
        """The calling thread enters a block, or gets the full time again."""
        with self._lock:
            self._guarded[get_ident()] = _Guarded(secs, math.ceil(secs / LOOK_SECS))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()

    def leave(self) -> None:
        """The calling thread has left it; what it was told is raised here at the latest."""
        try:
            with self._lock:
                self._guarded.pop(get_ident(), None)
        except TimeUp:
            with self._lock:
                self._guarded.pop(get_ident(), None)
            raise

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECS)
            with self._lock:
                for thread, guarded in self._guarded.items():
                    guarded.looks -= 1
                    if guarded.looks <= 0:
                        self._tell(thread, guarded)

    def _tell(self, thread: int, guarded: _Guarded) -> None:
        if guarded.late:
            _LOG.error(
                "an environment has not returned for %g s, and a thread that does not leave C code "
                "cannot be ended; train in the main thread, or under engine local",
                guarded.secs + CONFIRM_SECS,
            )
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(TimeUp))
        guarded.late, guarded.looks = True, math.ceil(CONFIRM_SECS / LOOK_SECS)


_WATCHDOG = _Watchdog()


class Deadline:
    """Raises :class:`TimeUp` in the block it guards after ``secs`` s; reusable, not nested."""

    __slots__ = ("_installed", "_timer_before", "secs")

    def __init__(self, secs: float) -> None:
        self.secs = secs
        self._installed = False
        self._timer_before = (0.0, 0.0)

    def __enter__(self) -> None:
        if get_ident() != _MAIN_THREAD:
            _WATCHDOG.guard(self.secs)
            return
        if not self._installed:
            _ALARM.install()
            self._installed = True
        _ALARM.armed = True
        self._timer_before = self._set_timer()

    def restart(self) -> None:
        """Give the guarded block the full time again."""
        if get_ident() != _MAIN_THREAD:
            _WATCHDOG.guard(self.secs)
        elif _ALARM.armed:
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
        if get_ident() != _MAIN_THREAD:
            _WATCHDOG.leave()
            return
        _ALARM.armed = False
        setitimer(ITIMER_REAL, *self._timer_before)
