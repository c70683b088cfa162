"""Memory that a process has freed stays with it.

A batch of images takes tens of megabytes at every layer, each update anew. By default the C library
gives blocks of that size back to the system when they are freed and asks for them again, and the
system clears every page of them each time. `tests/unit/test_heap.py` counts them.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
"""More than this is given back; blocks of this size are asked for one by one."""
_BLOCK_BYTES = (_KEPT_BYTES, 1 << 25)
"""Older C libraries take only the second for the size of blocks."""


def keep_freed_memory() -> bool:
    """Do so in this process, for good; False where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    keeps = mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES) == 1
    return any(mallopt(_M_MMAP_THRESHOLD, size) == 1 for size in _BLOCK_BYTES) and keeps
