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
import time
from typing import Any

PRELOADED = (
    "rookery.cli.train",
    "rookery.training",
    "rookery.engines.local",
    "rookery.engines.process",
    "safetensors.numpy",
    "setproctitle",
    "tests.forks",
)
_PACKET_BYTES, _MOST_FDS = 1 << 18, 16


def main() -> int:
    """Serve until the tests are over; in a fork, what its module returns."""
    door = socket.socket(fileno=int(sys.argv[1]))
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whoever started it may have held some
    gc.disable()  # meanwhile: next to nothing of this is ever freed
    for module in PRELOADED:
        importlib.import_module(module)
    from rookery.formations.settings import preload

    preload()
    _make_room_for_titles()
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked"
    gc.collect()
    gc.freeze()
    gc.enable()
    while True:
        packet, descriptors, _, _ = socket.recv_fds(door, _PACKET_BYTES, _MOST_FDS)
        if not packet:
            os._exit(0)
        reader, writer = os.pipe()
        if between := os.fork():
            os.close(writer)
            with os.fdopen(reader, "rb") as told:
                pid = told.read()
            os.waitpid(between, 0)  # from now on the fork is an orphan
            for descriptor in descriptors:
                os.close(descriptor)
            door.send(pid)
            continue
        between = os.getpid()
        if pid := os.fork():
            os.write(writer, str(pid).encode())
            os._exit(0)
        for descriptor in (reader, writer):
            os.close(descriptor)
        door.close()
        while os.getppid() == between:  # its parent is to be who asked for it
            time.sleep(0.0005)
        return _live(json.loads(packet), descriptors)


def _live(order: dict[str, Any], descriptors: list[int]) -> int:
    """Become what ``python -m MODULE`` is, as far as it can tell."""
    import numpy as np

    _renumber(descriptors, order["numbers"])
    if order["terminal"]:
        own_the_terminal()
    elif order["session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    sys.path[0] = order["cwd"]
    sys.argv = [order["module"], *order["words"]]
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = _text(1)
    sys.stderr = sys.__stderr__ = _text(2)
    np.random.seed()  # as of a process that was not forked
    if order["module"] != "rookery":
        return int(importlib.import_module(order["module"]).main())
    if (spare := _set_aside()) is not None:
        return spare
    from rookery.cli.main import main as rookery

    return rookery()


def _make_room_for_titles() -> None:
    """``setproctitle`` finds its room by the environment that a process began with."""
    import setproctitle

    setproctitle.setproctitle(setproctitle.getproctitle())


def _renumber(descriptors: list[int], numbers: list[int]) -> None:
    """Have ``descriptors`` under ``numbers``, some of which may be those of others."""
    above = max(*descriptors, *numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _set_aside() -> int | None:
    """Fork once more while that is possible: this process's own fork server, if it needs one.

    In that fork, what its module returns, once it was asked to be one.
    """
    from rookery.engines import fork_server
    from tests.forks import Spare

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        Spare.door, Spare.spare_pid = ours, pid
        fork_server.Popen = Spare  # type: ignore[misc]
        return None
    ours.close()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)
    packet, descriptors, _, _ = socket.recv_fds(theirs, _PACKET_BYTES, _MOST_FDS)
    if not packet:
        os._exit(0)
    theirs.close()
    return _live(json.loads(packet), descriptors)


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
