"""The process that forks all others: ``python -m rookery.engines.fork_server_process FD PARENT``.

What every role imports takes seconds, so it is imported here once, and a child is a fork of it. The
server runs none of it, has one thread, and knows nothing of the user's code, so that a child is as
good as a fresh interpreter. Should somebody have started a thread in it all the same (a debugger,
a profiler), children are fresh interpreters: slow, but sound.

It ends with the driver and its children end with it, however that comes about.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rookery.engines.child import die_with_parent, live
from rookery.engines.fork_server import MOST_FDS
from rookery.engines.interrupt import ENDING

_PACKET_BYTES = 1 << 16
_OWN_SIGNALS = (signal.SIGTERM, signal.SIGCHLD)
"""Those that the fork server treats otherwise than its children."""


PRELOADED = ("rookery.engines.process", "safetensors.numpy", "setproctitle")
"""With all that these import in turn: torch, numpy, gymnasium, every role."""


def main() -> int:
    """Serve until the driver is gone; in a child, what its role returns."""
    die_with_parent(int(sys.argv[2]))
    for number in ENDING:  # only the driver acts on them
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    door = socket.socket(fileno=int(sys.argv[1]))
    _import_what_all_need()
    start = _ForkServer(door).serve()
    if start is None:
        os._exit(0)
    return start.live()


def _import_what_all_need() -> None:
    gc.disable()  # meanwhile: next to nothing of this is ever freed
    for module in PRELOADED:
        importlib.import_module(module)
    from rookery.formations.settings import preload

    preload()
    # A collection in a child would write to, and so copy, every page that they share.
    gc.collect()
    gc.freeze()
    gc.enable()


@dataclass(slots=True)
class _Start:
    """What a forked child is to take up."""

    control: int
    log: int
    numbers: dict[int, int]
    environment: dict[str, str | None]
    parent: int

    def live(self) -> int:
        """Let go of what was the fork server's and become the role."""
        import numpy as np

        die_with_parent(self.parent)
        for number in _OWN_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        for descriptor in (1, 2):
            os.dup2(self.log, descriptor)
        os.close(self.log)
        _change_environment(os.environ, self.environment)
        np.random.seed()  # Python's own generator does so by itself
        return live(socket.socket(fileno=self.control), self.numbers)


class _ForkServer:
    """Starts children as it is told, and tells of their ends."""

    def __init__(self, door: socket.socket) -> None:
        self.door = door
        self.shared: dict[int, int] = {}
        """Descriptors that every child inherits: the driver's numbers for them, and ours."""
        self.children: dict[int, int] = {}
        """Pids of those that live, and the driver's numbers for them."""
        self.bell, self.ringer = os.pipe()
        for descriptor in (self.bell, self.ringer):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.ringer, warn_on_full_buffer=False)

    def serve(self) -> _Start | None:
        """Do what the driver asks until it is gone; in a child, what that is to be."""
        poll = select.poll()
        for descriptor in (self.door.fileno(), self.bell):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self.bell in ready:
                os.read(self.bell, _PACKET_BYTES)
                self._reap()
            if self.door.fileno() not in ready:
                continue
            packet, passed, _, _ = socket.recv_fds(self.door, _PACKET_BYTES, MOST_FDS)
            if not packet:
                return None
            for descriptor in passed:
                os.set_inheritable(descriptor, False)
            start = self._obey(json.loads(packet), passed)
            if start is not None:
                return start

    def _obey(self, asked: dict[str, Any], passed: list[int]) -> _Start | None:
        kind = asked["kind"]
        if kind == "name":
            import setproctitle

            setproctitle.setproctitle(f"rookery fork-server {asked['run']}")
        elif kind == "share":
            if asked["anew"]:
                for descriptor in self.shared.values():
                    os.close(descriptor)
                self.shared = {}
            self.shared |= dict(zip(asked["descriptors"], passed, strict=True))
        elif kind == "kill":
            for pid in self._pids(asked["number"]):
                os.kill(pid, signal.SIGKILL)
        elif kind == "start":
            return self._start(asked, *passed)
        return None

    def _pids(self, number: int) -> Iterator[int]:
        """The pid of that child, unless it has been reaped."""
        return (pid for pid, known in self.children.items() if known == number)

    def _start(self, asked: dict[str, Any], control: int, log: int) -> _Start | None:
        start = _Start(control, log, self.shared, asked["environment"], os.getpid())
        if num_threads() > 1:
            pid = _spawn(start)
        else:
            pid = os.fork()
            if not pid:
                self._forget()
                return start
        os.close(control)
        os.close(log)
        self.children[pid] = asked["number"]
        self._tell("started", number=asked["number"], pid=pid)
        return None

    def _forget(self) -> None:
        """In a child: nothing of the fork server's own may stay open."""
        signal.set_wakeup_fd(-1)
        self.door.close()
        os.close(self.bell)
        os.close(self.ringer)

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            number = self.children.pop(pid, None)
            if number is not None:
                self._tell("ended", number=number, code=os.waitstatus_to_exitcode(status))

    def _tell(self, kind: str, **content: int) -> None:
        try:
            self.door.send(json.dumps({"kind": kind, **content}).encode())
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)  # the driver is gone, and so is everybody's reason to live


def num_threads() -> int:
    """Of this process, Python's and others'."""
    return len(os.listdir("/proc/self/task"))


def _spawn(start: _Start) -> int:
    """A fresh interpreter as the child; its pid."""
    for descriptor in (start.control, *start.numbers.values()):
        os.set_inheritable(descriptor, True)
    environment = dict(os.environ)
    _change_environment(environment, start.environment)
    numbers = json.dumps(list(start.numbers.items()))
    arguments = ["-m", "rookery.engines.child", str(start.control), str(start.parent), numbers]
    to_log = [(os.POSIX_SPAWN_DUP2, start.log, descriptor) for descriptor in (1, 2)]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, *arguments],
        environment,
        file_actions=to_log,
        setsigdef=_OWN_SIGNALS,
    )


def _change_environment(environment: Any, changes: dict[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


if __name__ == "__main__":
    sys.exit(main())
