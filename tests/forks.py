"""``python -m rookery`` in a process of its own that starts in a moment.

Importing torch takes seconds, of which `make test` would spend many minutes. Here it is imported
once, by a server (:mod:`tests.fork_server`) with one thread, and each process is a fork of that::

    process = forked("train", "cartpole", stderr=subprocess.PIPE, text=True)

It is a ``Popen`` with the same options, of which ``preexec_fn`` may only be ``own_the_terminal``.
A process whose start itself is looked at (its imports, its
locale, signals at its very beginning) is started afresh by ``subprocess`` instead.
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
from functools import cache
from pathlib import Path
from typing import Any

from tests.fork_server import own_the_terminal

ROOT = Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36
_ANSWER_SECS = 120.0


def forked(*words: str, **options: Any) -> subprocess.Popen[str]:
    """``rookery`` with ``words``; options are those of Popen."""
    return _Forked([sys.executable, "-m", "rookery", *words], **options)


class _Forked(subprocess.Popen[str]):
    """A Popen whose process is a fork of the server.

    The server's children are orphans, whom the kernel gives to this process to wait for.
    """

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        assert asked["preexec_fn"] in (None, own_the_terminal)
        ends = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        standard = [number if end == -1 else end for number, end in enumerate(ends)]
        order = {
            "words": asked["args"][3:],
            "cwd": str(asked["cwd"] or os.getcwd()),
            "environment": dict(os.environ if asked["env"] is None else asked["env"]),
            "session": bool(asked["start_new_session"]),
            "terminal": asked["preexec_fn"] is not None,
        }
        door = _server()
        socket.send_fds(door, [json.dumps(order).encode()], standard)
        self.pid = int(door.recv(64))
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


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
