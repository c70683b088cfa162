"""Several commands, some at a time, each a process that cannot outlive this one.

::

    children = [Child("seed 0", ["train", "cartpole", "--seed", "0"], log=Path("seed-0.log")), ...]
    interrupted = run_all(children, at_once=2, listener=listener)
    codes = [child.code for child in children]

Every line that a child prints goes to its log and to a listener. The first
Ctrl-C or SIGTERM is passed on, so that every child ends properly; the second kills them all.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from rookery.engines.interrupt import Interrupt, held

_LOOK_SECS = 0.2
"""How often processes are looked at when none of them says anything."""
_CHUNK_BYTES = 1 << 16


class Listener(Protocol):
    """Who shows how the children do."""

    def say(self, text: str) -> None:
        """Something about all of them."""
        ...

    def hear(self, child: Child, line: str) -> None:
        """What one of them has printed."""
        ...

    def look(self) -> None:
        """Called several times a second: all that there is to say was said."""
        ...


@dataclass(slots=True)
class Child:
    """One command and what became of it."""

    name: str
    words: list[str]
    """The words after ``rookery``."""
    log: Path
    code: int | None = None
    """Its exit code, negative for a signal; None: it was never started."""
    last_line: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _file: BinaryIO | None = None
    _rest: bytes = b""

    @property
    def started(self) -> bool:
        """Whether there is, or was, a process."""
        return self._process is not None

    @property
    def output(self) -> int:
        """The descriptor at which its output is read."""
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def start(self) -> None:
        """Start the process, in a process group of its own: Ctrl-C is passed on by us alone."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.log.open("ab")
        module = "rookery.cli.seed_process"
        with held():  # inherited: the child lets signals in when it can deal with them
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(os.getpid()), *self.words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        os.set_blocking(self.output, False)

    def signal(self, number: int) -> None:
        """Pass a signal on to the process; those that it started are its own concern."""
        if self._process is not None:
            self._process.send_signal(number)

    def lines(self) -> Iterator[str]:
        """What it has printed since; also into its log."""
        assert self._file is not None
        data = _read(self.output)
        self._file.write(data)
        self._file.flush()
        *whole, self._rest = (self._rest + data).split(b"\n")
        if self.ended and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        for line in whole:
            text = line.decode(errors="replace").rstrip()
            if text:
                self.last_line = text
                yield text

    @property
    def ended(self) -> bool:
        """Whether its process is over; its number stays taken until :meth:`close`."""
        if self._process is None:
            return False
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, how) is not None

    def close(self) -> None:
        """Let go of the process, and end whatever is left of its group."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._file is not None:
            self._file.close()


def run_all(
    children: Sequence[Child], *, at_once: int, listener: Listener
) -> signal.Signals | None:
    """Run every child, ``at_once`` at a time; the signal that ended them early, if one did."""
    waiting, running = deque(children), list[Child]()
    passed_on = False
    with Interrupt(quiet=True) as interrupt:
        try:
            while running or (waiting and not interrupt.requested):
                while waiting and len(running) < at_once and not interrupt.requested:
                    running.append(waiting.popleft())
                    running[-1].start()
                if interrupt.requested and not passed_on:
                    passed_on = True
                    listener.say("ending every seed with a checkpoint; once more to end at once")
                    for child in running:
                        child.signal(interrupt.signal or signal.SIGINT)
                listener.look()
                _wait_for_output(running)
                for child in list(running):
                    ended = child.ended  # asked first: what it printed before is read below
                    for line in child.lines():
                        listener.hear(child, line)
                    if ended:
                        running.remove(child)
                        child.close()
        finally:
            with held():
                for child in running:
                    child.close()
    return signal.Signals(interrupt.signal) if interrupt.signal is not None else None


def _wait_for_output(running: Sequence[Child]) -> None:
    """Until one of them says something, or it is time to look at them."""
    with selectors.DefaultSelector() as selector:
        for child in running:
            selector.register(child.output, selectors.EVENT_READ)
        selector.select(_LOOK_SECS)


def _read(descriptor: int) -> bytes:
    """Everything that is there now."""
    chunks = []
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            chunks.append(chunk)
    return b"".join(chunks)
