"""A parent for every rank of an MPI job, which says how its rank ended.

A launcher that finds one rank dead kills the rest, and then may name any of them. The guard is what
the launcher started; the rank is its child. So the guard knows first, and exactly, and the launcher
learns of it only when the guard, having said so, ends.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable

from rookery.engines.child import die_with_parent
from rookery.engines.launcher import HEARD_SECS, cancel_step

MEANT_TOO_SECS = 0.01
"""Who kills a whole job kills the guard within this time of its rank."""
OTHERS_SECS = 2.0
"""MPI aborts ranks that lost another. That one's guard ends the job within this time."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def guarded(rank: int, body: Callable[[], int]) -> int:
    """What ``body`` returns in a child process; both processes return it."""
    guard = os.getpid()
    sys.stdout.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        die_with_parent(guard)
        _set_title(f"rookery rank-{rank}")
        return body()
    # Launchers signal the whole process group, and the rank acts on it.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    _set_title(f"rookery rank-{rank} guard")
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        time.sleep(OTHERS_SECS if -code == signal.SIGABRT else MEANT_TOO_SECS)
        _say(rank, -code)
        time.sleep(HEARD_SECS)
        cancel_step()
        _die_of(-code)
    return code


def _say(rank: int, number: int) -> None:
    """Name the rank and the signal that killed it."""
    hint = ", perhaps for want of memory" if number == signal.SIGKILL else ""
    print(
        f"rookery: rank {rank} on {socket.gethostname()} was killed by "
        f"{signal.Signals(number).name}{hint}; the job ends; "
        "`rookery resume` goes on from its last checkpoint, if it has one",
        file=sys.stderr,
        flush=True,
    )


def _die_of(number: int) -> None:
    """End as the rank did: an exit code would not make mpiexec end the ranks of other hosts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _set_title(title: str) -> None:
    import setproctitle

    setproctitle.setproctitle(title)
    # Slurm does not find processes whose short name has a space in it.
    setproctitle.setthreadtitle(title.replace(" ", "-"))
