"""Records for a tracking service, carried there by a process of its own.

A service may be slow, hang, print, ask for a password or be gone. None of that may stop or slow a
run, so whoever writes records only puts them into a pipe, and never waits before the end::

    sink = Courier("wandb", run)       # starts `python -m rookery.runs.courier_process`
    sink.write(record)                 # into the pipe, or kept until there is room in it
    sink.close()                       # waits a little, then ends the process

What the process has to say (one warning) comes back as a line of JSON; what the service prints goes
to ``logs/<service>-0.log``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from rookery.runs.metrics import scalar

if TYPE_CHECKING:
    from rookery.runs.directory import RunDirectory

_LOG = logging.getLogger(__name__)

CLOSE_SECS = 25.0
"""How long the end of a run may wait for a service that has made no trouble."""
TROUBLED_SECS = 3.0
"""The same for one that has."""
BACKLOG_BYTES = 32 << 20
"""What is kept while the process does not read; records after that are left out."""


class Courier:
    """A metric sink that hands its records to the process that speaks with ``service``."""

    def __init__(self, service: str, run: RunDirectory) -> None:
        self._service = service
        self._backlog = bytearray()
        self._heard = b""
        self._troubled = False
        self._dropping = False
        run.logs.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "rookery.runs.courier_process"]
        command += [service, str(run.path.absolute())]
        with run.log_path(service, 0).open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for the driver
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        os.set_blocking(self._to.fileno(), False)
        os.set_blocking(self._from.fileno(), False)

    def write(self, record: dict[str, Any]) -> None:
        """Hand ``record`` over; returns at once, whatever the service does."""
        line = json.dumps({key: scalar(key, value) for key, value in record.items()}) + "\n"
        if len(self._backlog) + len(line) <= BACKLOG_BYTES:
            self._backlog += line.encode()
        elif not self._dropping:
            self._dropping = True
            self._warn("takes no records; new ones are left out")
        self._push()
        self._listen()

    def flush(self) -> None:
        """Hand over what is kept, as far as there is room."""
        self._push()

    def close(self) -> None:
        """Hand over the rest and wait for the service, but not for long."""
        failed = sys.exc_info()[0] is not None  # closed on the way out of an error
        self._backlog += json.dumps({"close": "failed" if failed else "finished"}).encode() + b"\n"
        try:
            if not self._drain():
                self._warn("did not answer at the end of the run; it may lack the last records")
        finally:
            self._end()

    def _push(self) -> None:
        """Write what the pipe takes now."""
        try:
            while self._backlog:
                del self._backlog[: os.write(self._to.fileno(), self._backlog[:65536])]
        except BlockingIOError:
            pass
        except OSError:  # its end is gone; what it said last tells why
            self._backlog.clear()

    def _listen(self) -> None:
        """Pass on what the process reports."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._from.fileno(), 65536):
                self._heard += data
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            report = json.loads(line)
            self._troubled = not report["works"]
            _LOG.warning("%s", report["warning"])
        if self._process.poll() not in (None, 0):
            self._warn(
                f"ended with code {self._process.returncode}; see logs/{self._service}-0.log"
            )

    def _drain(self) -> bool:
        """Let the process finish; whether it did in time."""
        begun = time.monotonic()
        while self._process.poll() is None:
            self._push()
            if not self._backlog and not self._to.closed:
                self._to.close()
            waited = time.monotonic() - begun
            if waited > (TROUBLED_SECS if self._troubled else CLOSE_SECS):
                return False
            poll = select.poll()
            poll.register(self._from.fileno(), select.POLLIN)
            if not self._to.closed:
                poll.register(self._to.fileno(), select.POLLOUT)
            poll.poll(100.0)
            self._listen()
            if self._to.closed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.05)
        self._listen()
        return True

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._to.close()
        self._from.close()

    def _warn(self, what: str) -> None:
        if not self._troubled:
            self._troubled = True
            _LOG.warning("metric sink %s %s", self._service, what)
