"""Processes of a run that somebody has stopped (SIGSTOP, a debugger): the others wait for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path

from rookery.engines.fleet import Process

_LOG = logging.getLogger(__name__)

LOOK_SECS = 5.0
TELL_SECS = 15.0
"""Stopped for so long, a process is told of."""


class StoppedProcesses:
    """Looks now and then, and says who has been stopped."""

    def __init__(self) -> None:
        self.looked = time.monotonic()
        self.since: dict[str, float] = {}
        """Since when, by the process's name; infinity once it was told."""

    def look(self, processes: Iterable[Process]) -> None:
        """Say who has been stopped for long, and who goes on."""
        moment = time.monotonic()
        if moment - self.looked < LOOK_SECS:
            return
        self.looked = moment
        for process in processes:
            pid = process.child.pid if process.child is not None else None
            if pid is None or not is_stopped(pid):
                if self.since.pop(process.name, 0.0) == float("inf"):
                    _LOG.warning("%s goes on", process.name)
                continue
            if moment - self.since.setdefault(process.name, moment) >= TELL_SECS:
                self.since[process.name] = float("inf")
                _LOG.warning(
                    "%s has been stopped for %.0f s, and the others wait for it; "
                    "`kill -CONT %d` lets it go on",
                    process.name,
                    TELL_SECS,
                    pid,
                )


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds the process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
