"""Ctrl-C and SIGTERM: the first ends the run properly, the second at once."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple

ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
"""Signals that end a run."""
SAME_SECS, SLURM_SAME_SECS = 0.1, 1.0
"""SIGTERM again within this time means the same: `timeout` sends one to its child and one to the
group, at once; Slurm too when a job's time is up, not so fast."""


class Stop(NamedTuple):
    """Why a run is to end before it is over."""

    state: Literal["interrupted", "stopped"]
    reason: str


class Interrupt:
    """Within the context, the first signal sets ``requested``; the second raises KeyboardInterrupt.

    Outside the main thread, where Python delivers no signals, only :meth:`ask` sets it.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self.requested = False
        self.signal: int | None = None
        self.since = 0.0
        self.quiet = quiet
        self._asked: Stop | None = None
        self._before: dict[int, Any] = {}

    @property
    def reason(self) -> str:
        """What was received."""
        if self._asked is not None:
            return self._asked.reason
        return signal.Signals(self.signal).name if self.signal is not None else ""

    def stopping(self) -> Stop | None:
        """Whether, and why, the run is to end."""
        if not self.requested:
            return None
        return self._asked or Stop("interrupted", self.reason)

    def ask(self, stop: Stop) -> None:
        """Somebody else has received it, or wants the end for another reason; from any thread."""
        self._asked = self._asked or stop
        self.requested = True

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if number == signal.SIGTERM and time.monotonic() - self.since < _same_secs():
                return
            raise KeyboardInterrupt(signal.Signals(number).name)
        self.requested, self.signal, self.since = True, number, time.monotonic()
        if not self.quiet:
            with contextlib.suppress(OSError):
                sys.stderr.write("\nending with a checkpoint; once more to end at once\n")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _same_secs() -> float:
    return SLURM_SAME_SECS if "SLURM_JOB_ID" in os.environ else SAME_SECS


def exit_code_of(error: KeyboardInterrupt) -> int:
    """128 and the number of the signal that ended the command at once: 130 for Ctrl-C."""
    told = signal.SIGTERM if signal.SIGTERM.name in error.args else signal.SIGINT
    return 128 + told


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold those signals back within the block, also from processes that are started in it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
