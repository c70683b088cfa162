"""Processes that start in a moment: the driver's end of the process that forks them.

::

    with ForkServer() as server:              # imports torch meanwhile, once for all children
        server.share(descriptors)          # what every child from now on inherits
        child = server.start(theirs, log, num_threads=1)
        child.poll()                        # as of Popen: None, an exit code, or minus a signal
        child.kill()

The children's parent is the fork server (:mod:`rookery.engines.fork_server_process`), so it learns
how each of them ended, and tells. The driver never signals a child by its pid, which might by then
be somebody else's: it asks the fork server to. A fork server that ends takes all with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from subprocess import DEVNULL, Popen
from typing import Any, BinaryIO

from rookery.engines.interrupt import held

ANSWER_SECS = 10.0
"""How long the fork server may take to tell of an end before it is taken for stuck, and killed."""
MOST_FDS = 250
"""Of one packet; Linux takes 253."""
_PACKET_BYTES = 1 << 16
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by libraries as they are loaded. A process with several threads cannot be forked safely."""


@dataclass(slots=True, eq=False)
class Child:
    """A process that the fork server started."""

    server: ForkServer
    number: int
    pid: int | None = None
    """None until the fork server has told of it."""
    code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        self.server.hear()
        return self.code

    def wait(self, timeout_secs: float) -> int | None:
        """The same, waited for."""
        deadline = time.monotonic() + timeout_secs
        while self.code is None and self.server.hear(max(deadline - time.monotonic(), 0.0)):
            pass
        return self.code

    def kill(self) -> None:
        """End it at once, and wait for its end."""
        if self.poll() is None:
            self.server.send("kill", number=self.number)
            if self.wait(ANSWER_SECS) is None:
                self.server.kill()


class ForkServer:
    """The process that forks all others of a run, and what it tells of them."""

    def __init__(self) -> None:
        self._run = ""
        self._count = 0
        self._living: dict[int, Child] = {}
        self._start_process()

    def restart(self) -> None:
        """A new process in place of one that has ended, and its children with it."""
        self.close()
        self._start_process()

    def _start_process(self) -> None:
        self.code: int | None = None
        """How it ended; None while it runs."""
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output = os.fdopen(os.memfd_create("rookery-fork-server"), "w+b")
        environment = os.environ | dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONUNBUFFERED": "1"}
        module = "rookery.engines.fork_server_process"
        with theirs, held():  # it lets signals in when it can deal with them
            self._process = Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment,
            )
        if self._run:
            self.name(self._run)

    @property
    def pid(self) -> int:
        """Of the fork server itself."""
        return self._process.pid

    def name(self, run: str) -> None:
        """Show in its title which run it serves."""
        self._run = run
        self.send("name", run=run)

    def share(self, descriptors: Sequence[int]) -> None:
        """What every child inherits from now on, in place of what was shared before."""
        for first in range(0, max(len(descriptors), 1), MOST_FDS):
            some = list(descriptors[first : first + MOST_FDS])
            self.send("share", descriptors=some, anew=first == 0, passed=some)

    def start(self, control: socket.socket, log: BinaryIO, *, num_threads: int) -> Child:
        """Start a process that takes its order from ``control`` and prints to ``log``.

        If the fork server has just ended, so has the child that it would have started.
        """
        self._count += 1
        child = self._living[self._count] = Child(self, self._count)
        environment = {name: os.environ.get(name) for name in _ONE_THREAD}
        self.send(
            "start",
            number=child.number,
            environment=environment | {"OMP_NUM_THREADS": str(num_threads)},
            passed=[control.fileno(), log.fileno()],
        )
        return child

    def send(self, kind: str, *, passed: Sequence[int] = (), **content: Any) -> None:
        """Ask something of it; if it is gone, that is noticed here or by the next look."""
        packet = json.dumps({"kind": kind, **content}).encode()
        try:
            socket.send_fds(self._door, [packet], list(passed))
        except (BrokenPipeError, ConnectionResetError):
            self._bury()

    def hear(self, timeout_secs: float = 0.0) -> bool:
        """Note what it tells; whether anything came within ``timeout_secs``."""
        if self.code is not None:
            return False
        poll = select.poll()
        poll.register(self._door, select.POLLIN)
        if not poll.poll(timeout_secs * 1000):
            return False
        while self.code is None:
            try:
                packet = self._door.recv(_PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:
                packet = b""
            self._note(json.loads(packet)) if packet else self._bury()
        return True

    def _note(self, told: dict[str, Any]) -> None:
        child = self._living[told["number"]]
        if told["kind"] == "started":
            child.pid = told["pid"]
        else:
            child.code = told["code"]
            del self._living[child.number]

    def _bury(self) -> None:
        """It has ended, and the kernel has killed its children."""
        if self.code is None:
            self.code = self._process.wait()
        for child in self._living.values():
            child.code = -signal.SIGKILL
        self._living.clear()

    def last_words(self) -> str:
        """The last line it printed: what kept it from starting."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def fileno(self) -> int:
        """For selectors: readable when it has something to tell, or has ended."""
        return self._door.fileno()

    def kill(self) -> None:
        """End it and, by the kernel's hand, its children."""
        self._process.kill()
        self._bury()

    def close(self) -> None:
        """The same, and let go of everything."""
        self.kill()
        self._door.close()
        self._output.close()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_ready: list[ForkServer] = []
"""One that was given a head start, until it is taken up."""


@contextlib.contextmanager
def head_start() -> Iterator[None]:
    """Make a fork server ready for the first :func:`fork_server_for` within the block."""
    _ready.append(ForkServer())
    try:
        yield
    finally:
        while _ready:
            _ready.pop().close()


@contextlib.contextmanager
def fork_server_for(engine: str) -> Iterator[ForkServer | None]:
    """A fork server, for the engine whose processes it starts."""
    if engine != "local":
        yield None
        return
    with _ready.pop() if _ready else ForkServer() as server:
        yield server
