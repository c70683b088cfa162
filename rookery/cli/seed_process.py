"""One of several seeds: ``python -m rookery.cli.seed_process PARENT train WHAT --seed 1 ...``.

``rookery train`` as it is, but it ends with the process that started it, and a signal that comes
before it can be dealt with waits until it can.
"""

from __future__ import annotations

import signal
import sys

from rookery.engines.child import die_with_parent
from rookery.engines.interrupt import ENDING

INTERRUPTED = 130


def main() -> int:
    """Become the command; its exit code."""
    die_with_parent(int(sys.argv[1]))
    words = sys.argv[2:]
    sys.argv = ["rookery", *words]  # what the run's meta.json says
    try:
        from rookery.cli.main import main as rookery

        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        return rookery(words)
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
