"""The process that :mod:`tests.forks` forks: ``python -m tests.fork_server FD``."""

from __future__ import annotations

import fcntl
import gc
import importlib
import io
import json
import os
import signal
import socket
import sys
import termios
from typing import Any

PRELOADED = ("rookery.cli.train", "rookery.training", "rookery.engines.local", "setproctitle")
_PACKET_BYTES = 1 << 18


def main() -> int:
    """Serve until the tests are over; in a fork, what ``rookery`` returns."""
    door = socket.socket(fileno=int(sys.argv[1]))
    for module in PRELOADED:
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    gc.collect()
    gc.freeze()
    while True:
        packet, standard, _, _ = socket.recv_fds(door, _PACKET_BYTES, 3)
        if not packet:
            os._exit(0)
        reader, writer = os.pipe()
        if between := os.fork():
            os.close(writer)
            with os.fdopen(reader, "rb") as told:
                pid = told.read()
            os.waitpid(between, 0)  # from now on the fork is an orphan
            for descriptor in standard:
                os.close(descriptor)
            door.send(pid)
        elif pid := os.fork():
            os.write(writer, str(pid).encode())
            os._exit(0)
        else:
            for descriptor in (reader, writer):
                os.close(descriptor)
            door.close()
            return _live(json.loads(packet), standard)


def _live(order: dict[str, Any], standard: list[int]) -> int:
    """Become what ``python -m rookery`` is, as far as it can tell."""
    import numpy as np

    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if order["terminal"]:
        own_the_terminal()
    elif order["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    sys.path[0] = order["cwd"]
    sys.argv = ["rookery", *order["words"]]
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = _text(1)
    sys.stderr = sys.__stderr__ = _text(2)
    np.random.seed()  # as of a process that was not forked
    from rookery.cli.main import main as rookery

    return rookery()


def _text(number: int) -> Any:
    """Standard output or standard error, as Python itself opens it."""
    errors = "backslashreplace" if number == 2 else "strict"
    if os.environ.get("PYTHONUNBUFFERED"):
        raw = os.fdopen(number, "wb", buffering=0, closefd=False)
        return io.TextIOWrapper(raw, "utf-8", errors, write_through=True)  # type: ignore[arg-type]
    lines = number == 2 or os.isatty(number)
    buffer = os.fdopen(number, "wb", closefd=False)
    return io.TextIOWrapper(buffer, "utf-8", errors, line_buffering=lines)


def own_the_terminal() -> None:
    """Have the terminal that is standard input for this process and those it starts."""
    os.setsid()
    # Closing the terminal must not end the command: some tests look at what it does then.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


if __name__ == "__main__":
    sys.exit(main())
