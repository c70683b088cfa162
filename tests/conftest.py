"""Settings that hold for every test."""

from __future__ import annotations

import os
import signal

# Before torch is imported: tiny tensors gain nothing from threads, and on a busy machine waiting
# for one another makes them twenty times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Nor do processes that compile every module anew start any sooner.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that; the
# tests send it to children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The engine's fork servers start in a moment too.
from rookery.engines import fork_server
from tests.forks import Forked

fork_server.Popen = Forked  # type: ignore[misc]
