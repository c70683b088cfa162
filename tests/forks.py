"""Processes that start in a moment, because they are forks of one that has imported torch.

Importing torch takes seconds, of which `make test` would spend many minutes. Here it is imported
once, by a server (:mod:`tests.fork_server`) with one thread::

    process = forked("train", "cartpole", stderr=subprocess.PIPE, text=True)

:class:`Forked` is a ``Popen`` with the same options, of which ``preexec_fn`` may only be
``own_the_terminal``. `tests/conftest.py` has the engine's fork servers started by it too. A process
whose start itself is looked at (its imports, its locale, signals at its very beginning) is started
afresh by ``subprocess`` instead.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.fork_server import own_the_terminal

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36
_ANSWER_SECS = 120.0


def forked(*words: str, **options: Any) -> subprocess.Popen[str]:
    """``rookery`` with ``words``; options are those of Popen."""
    return Forked([sys.executable, "-m", "rookery", *words], **options)


class Forked(subprocess.Popen[str]):
    """``python -m MODULE ...``, as a fork of the server.

    The server's children are orphans, whom the kernel gives to this process to wait for.
    """

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        assert asked["preexec_fn"] in (None, own_the_terminal)
        assert asked["args"][1] == "-m"
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        standard = [number if end == -1 else end for number, end in enumerate(ends)]
        order = {
            "module": asked["args"][2],
            "words": asked["args"][3:],
            "cwd": str(asked["cwd"] or os.getcwd()),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "session": bool(asked["start_new_session"]),
            "terminal": asked["preexec_fn"] is not None,
            "numbers": [0, 1, 2, *asked["pass_fds"]],
        }
        pid = self._ask(json.dumps(order).encode(), [*standard, *asked["pass_fds"]])
        if pid is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]

    def _ask(self, order: bytes, descriptors: Sequence[int]) -> int | None:
        """The pid of a process that is what ``order`` says; None if there is none to be had."""
        door = _server()
        socket.send_fds(door, [order], list(descriptors))
        return int(door.recv(64))


@cache
def _server() -> socket.socket:
    """The way to the server, which ends with this process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(theirs.fileno())],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
    atexit.register(process.kill)
    ours.settimeout(_ANSWER_SECS)
    return ours


class Spare(Forked):
    """The process that a forked one has set aside while it could; the next ones start afresh."""

    door: socket.socket | None = None
    spare_pid = 0

    def _ask(self, order: bytes, descriptors: Sequence[int]) -> int | None:
        door, Spare.door = Spare.door, None
        if door is None:
            return None
        with door:
            socket.send_fds(door, [order], list(descriptors))
        return Spare.spare_pid
