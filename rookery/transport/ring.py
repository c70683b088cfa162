"""Rows of numbers from many writers to one reader, through bounded rings without a lock.

Each writer has a ring of its own: it writes the row and then the number of rows written, so that a
reader never sees half a row, and a writer that is killed leaves none.
"""

from __future__ import annotations

import time

import numpy as np

from rookery.core.errors import RunFailed
from rookery.core.patience import Patience
from rookery.core.spec import Array, Arrays, ArraySpec

FULL_TIMEOUT_SECS = 600.0
_PAUSE_SECS = 1e-3


def ring_specs(num_writers: int, capacity: int, columns: int) -> dict[str, ArraySpec]:
    """The arrays of :class:`Rings`."""
    return {
        "rows": ArraySpec((num_writers, capacity, columns), np.dtype(np.float64)),
        "written": ArraySpec((num_writers, 8), np.dtype(np.int64)),  # a cache line each
        "read": ArraySpec((num_writers, 8), np.dtype(np.int64)),
    }


class Rings:
    """One ring for each writer."""

    def __init__(self, arrays: Arrays) -> None:
        self.rows = arrays["rows"]
        self.written, self.read = arrays["written"][:, 0], arrays["read"][:, 0]

    @property
    def columns(self) -> int:
        """Numbers in a row."""
        return int(self.rows.shape[2])

    @property
    def capacity(self) -> int:
        """Rows of each writer that may wait."""
        return int(self.rows.shape[1])

    def room(self, writer: int) -> int:
        """Rows that may be added without a wait."""
        return self.capacity - int(self.written[writer] - self.read[writer])

    def empty(self, writer: int) -> bool:
        """Whether all that ``writer`` has added was taken."""
        return bool(self.written[writer] == self.read[writer])

    def push(self, writer: int, row: Array) -> None:
        """Add a row of at most ``columns`` numbers; waits while the ring is full."""
        capacity, written = self.capacity, int(self.written[writer])
        patience = Patience(FULL_TIMEOUT_SECS)
        while not self.room(writer):
            if patience.over():
                raise RunFailed(
                    f"worker-{writer} told {capacity} things that nobody read for "
                    f"{FULL_TIMEOUT_SECS:g} s: the session's process hangs; its log says more"
                )
            time.sleep(_PAUSE_SECS)
        self.rows[writer, written % capacity, : len(row)] = row
        self.written[writer] = written + 1

    def take(self) -> Array:
        """All rows that were not taken yet, ``[N, columns]``."""
        parts = [self._take(writer) for writer in range(len(self.rows))]
        return np.concatenate(parts)

    def take_one(self, writer: int) -> Array | None:
        """A copy of the oldest row of ``writer`` that was not taken yet."""
        if self.empty(writer):
            return None
        row: Array = self.rows[writer, self.read[writer] % self.capacity].copy()
        self.read[writer] += 1
        return row

    def _take(self, writer: int) -> Array:
        index = np.arange(self.read[writer], self.written[writer]) % self.capacity
        rows: Array = self.rows[writer, index]
        self.read[writer] += len(rows)
        return rows
