"""The steps of all streams, each kept once, in chunks that are taken and given back in a ring.

A stream fills one chunk at a time and then takes the oldest that is free, or makes it free: whoever
holds something of it is told. Chunks of one stream are linked in order, so that a sequence is where
it begins and how long it is.

Shapes: S streams, B rows appended, N sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rookery.core.spec import Array, Arrays
from rookery.replay.columns import Column

NONE = -1


class StepStore:
    """Rows of ``num_streams`` streams in ``num_chunks`` chunks of ``chunk_steps`` rows each.

    ``on_drop(chunk)`` is called before the rows of a chunk are given to others.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        *,
        num_chunks: int,
        chunk_steps: int,
        num_streams: int,
        on_drop: Callable[[int], None],
    ) -> None:
        self.columns = columns
        self.num_chunks = num_chunks
        self.chunk_steps = chunk_steps
        self.dirty: list[Array] = []
        """Chunks written since the caller last cleared this."""
        self._on_drop = on_drop
        self._chunk = np.full(num_streams, NONE, np.int64)  # the open chunk of each stream
        self._fill = np.full(num_streams, chunk_steps, np.int64)  # rows in it
        self._next = np.full(num_chunks, NONE, np.int64)  # the stream's chunk after this one
        self._used = np.zeros(num_chunks, np.int64)  # rows written; 0 is free
        self._oldest = 0

    @property
    def zero_row(self) -> int:
        """The row that reads as zeros."""
        return self.num_chunks * self.chunk_steps

    @property
    def num_rows(self) -> int:
        """Rows held now."""
        return int(self._used.sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of all columns and of the chunks' links."""
        links = self._next.nbytes + self._used.nbytes
        return links + sum(column.num_bytes for column in self.columns.values())

    def append(self, streams: Array, values: Mapping[str, Array]) -> Array:
        """Write the next row of ``streams`` ``[B]`` (distinct) and tell where: ``[B]``."""
        for stream in streams[self._fill[streams] == self.chunk_steps].tolist():
            self._open(stream)
        chunks, fill = self._chunk[streams], self._fill[streams]
        rows = chunks * self.chunk_steps + fill
        for name, column in self.columns.items():
            column.write(rows, values[name])
        self._fill[streams] = fill + 1
        self._used[chunks] = fill + 1
        self.dirty.append(chunks)
        for chunk in chunks[fill + 1 == self.chunk_steps].tolist():
            for column in self.columns.values():
                column.close(chunk)
        return rows

    def drop_oldest(self) -> bool:
        """Free the oldest chunk that is not being filled; False when there is none."""
        order = (self._oldest + np.arange(self.num_chunks)) % self.num_chunks
        closed = order[self._used[order] == self.chunk_steps]
        if not len(closed):
            return False
        self._drop(int(closed[0]))
        return True

    def rows_of(self, first: Array, padding: Array, num_rows: Array, length: int) -> Array:
        """``[length, N]`` the rows of sequences that begin at ``first`` ``[N]``.

        Each has ``padding`` ``[N]`` zero rows in front, ``num_rows`` ``[N]`` real ones, and zero
        rows behind.
        """
        at = np.arange(length)[:, None] - padding
        offset = at + first % self.chunk_steps
        hops = offset // self.chunk_steps
        rows = np.full((length, len(first)), self.zero_row)
        chunk = first // self.chunk_steps
        real = (at >= 0) & (at < num_rows)
        for hop in range(int(hops[real].max(initial=NONE)) + 1):
            here = real & (hops == hop)
            found = chunk * self.chunk_steps + offset % self.chunk_steps
            rows[here] = found[here]
            chunk = self._next[chunk]  # beyond a sequence's last chunk it is not looked at
        return rows

    def save(self) -> Arrays:
        """Where everything is; the rows themselves are saved by the columns."""
        return {
            "chunk": self._chunk,
            "fill": self._fill,
            "next": self._next,
            "used": self._used,
            "oldest": np.array([self._oldest]),
        }

    def load(self, arrays: Arrays) -> None:
        """Continue from what :meth:`save` gave."""
        self._chunk[:], self._fill[:] = arrays["chunk"], arrays["fill"]
        self._next[:], self._used[:] = arrays["next"], arrays["used"]
        self._oldest = int(arrays["oldest"][0])

    def open_chunks(self) -> set[int]:
        """Chunks that are being filled."""
        return set(np.flatnonzero((self._used > 0) & (self._used < self.chunk_steps)).tolist())

    def _open(self, stream: int) -> None:
        """Give ``stream`` the oldest chunk that nobody fills."""
        while 0 < self._used[self._oldest] < self.chunk_steps:
            self._oldest = (self._oldest + 1) % self.num_chunks
        chunk = self._oldest
        self._oldest = (chunk + 1) % self.num_chunks
        if self._used[chunk]:
            self._drop(chunk)
        if self._chunk[stream] != NONE:
            self._next[self._chunk[stream]] = chunk
        self._next[chunk] = NONE
        self._chunk[stream], self._fill[stream] = chunk, 0

    def _drop(self, chunk: int) -> None:
        self._on_drop(chunk)
        self._used[chunk] = 0
        self.dirty.append(np.array([chunk]))
        self._chunk[self._chunk == chunk] = NONE  # a stream that stands still: its link is gone
