"""Settings that hold for every test."""

from __future__ import annotations

import os

# Before torch is imported: tiny tensors gain nothing from threads, and on a busy machine waiting
# for one another makes them twenty times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
