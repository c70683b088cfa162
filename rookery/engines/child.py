"""What every process that a spawning engine starts does, forked or fresh.

The process reads what it is to be from its control socket, as JSON, builds that one role and runs
its loop. It never imports the user's ``__main__`` and never unpickles anything.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from rookery.transport.control import Control, Listener

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    The kernel does so even when this process is stuck in C code and cannot run Python.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before we asked
        os._exit(1)


def leave_signals_to_driver() -> None:
    """Ctrl-C reaches the whole terminal group, and SIGTERM of ``timeout``, systemd or Slurm the
    whole job; only the driver acts on them.

    Programs that this process starts are to end by SIGTERM as ever, so it is heard and passed over.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)


def live(own: socket.socket, numbers: dict[int, int]) -> int:
    """Become the role that the driver asks for through ``own``; its exit code.

    ``numbers`` are the driver's descriptors and under which numbers they are open here.
    """
    leave_signals_to_driver()
    control = Control(own)
    listener = Listener(control)
    order = listener.wait(timeout_secs=60.0)
    if order is None:
        print("no order from the driver within 60 s", file=sys.stderr)
        return 1
    order["fds"] = _renumbered(order["fds"], numbers)
    sys.path[:0] = [path for path in order["sys_path"] if path not in sys.path]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _set_title(order)
    try:
        _become(order, control, listener)
    except BaseException as error:
        traceback.print_exc()
        control.send("error", **_describe(error))
        return 1
    control.send("done")
    return 0


def _renumbered(fds: Any, numbers: dict[int, int]) -> Any:
    """The nested ``fds`` of an order as they are here."""
    if isinstance(fds, dict):
        return {name: _renumbered(below, numbers) for name, below in fds.items()}
    if isinstance(fds, list):
        return [_renumbered(below, numbers) for below in fds]
    return numbers[fds]


def _set_title(order: dict[str, Any]) -> None:
    import setproctitle

    run = Path(order["run"]).name
    setproctitle.setproctitle(f"rookery {order['role']}-{order['replica']} {run}")


def _become(order: dict[str, Any], control: Control, listener: Listener) -> None:
    from rookery.engines.process import become

    become(order, control, listener)


def _describe(error: BaseException) -> dict[str, Any]:
    from rookery.core.errors import EnvironmentFault, StateLost, UserError

    told = isinstance(error, UserError)
    return {
        "message": str(error) if told else f"{type(error).__name__}: {error}".strip(),
        "environment": isinstance(error, EnvironmentFault),
        "rewind": isinstance(error, StateLost),
        "exit_code": error.exit_code if isinstance(error, UserError) else None,
    }


def main() -> int:
    """``python -m rookery.engines.child FD PARENT NUMBERS``: a fresh process's way here."""
    die_with_parent(int(sys.argv[2]))
    return live(socket.socket(fileno=int(sys.argv[1])), dict(json.loads(sys.argv[3])))


if __name__ == "__main__":
    sys.exit(main())
