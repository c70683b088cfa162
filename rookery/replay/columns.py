"""Where the rows of a table lie, one column for each field.

Rows are grouped in **chunks** of as many rows each; a chunk belongs to one stream, which fills it
row after row. When it is full it is closed, and when it is the oldest it is taken by another.

Shapes: R rows in all chunks, B rows written, T+1 rows of N sequences read. Row R does not exist: it
reads as zeros, for padding.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rookery.core.spec import Array, Arrays, ArraySpec


class Column(Protocol):
    """One field of all rows."""

    spec: ArraySpec
    parts: tuple[str, ...]
    """Names of the arrays that :meth:`save` gives."""

    def write(self, rows: Array, values: Array) -> None:
        """Set ``rows`` ``[B]``, each the next of its chunk, to ``values`` ``[B, ...]``."""
        ...

    def close(self, chunk: int) -> None:
        """The chunk is full and will not be written until it is opened again."""
        ...

    def read(self, rows: Array, out: Array) -> None:
        """Copy ``rows`` ``[T+1, N]`` into ``out`` ``[T+1, N, ...]``."""
        ...

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        ...

    def save(self, begin: int, end: int) -> Arrays:
        """Chunks ``begin .. end-1`` as arrays by name."""
        ...

    def load(self, begin: int, end: int, arrays: Arrays, open_chunks: set[int]) -> None:
        """Put back what :meth:`save` gave; ``open_chunks`` are still being filled."""
        ...


class PlainColumn:
    """Rows as they are, in one array that is allocated at once."""

    parts: tuple[str, ...] = ("rows",)

    def __init__(self, spec: ArraySpec, num_chunks: int, chunk_steps: int) -> None:
        self.spec = spec
        self._chunk_steps = chunk_steps
        self._array = np.zeros((num_chunks * chunk_steps + 1, *spec.shape), spec.dtype)

    def write(self, rows: Array, values: Array) -> None:
        """Copy the values to their rows."""
        self._array[rows] = values

    def close(self, chunk: int) -> None:
        """Nothing to do."""

    def read(self, rows: Array, out: Array) -> None:
        """Copy the rows out."""
        # "clip" spares a copy: with "raise", NumPy buffers `out`. All rows are known to exist.
        np.take(self._array, rows, axis=0, out=out, mode="clip")

    @property
    def num_bytes(self) -> int:
        """Bytes of the array."""
        return int(self._array.nbytes)

    def save(self, begin: int, end: int) -> Arrays:
        """A view of the rows: write it out before the next put."""
        return {"rows": self._array[begin * self._chunk_steps : end * self._chunk_steps]}

    def load(self, begin: int, end: int, arrays: Arrays, open_chunks: set[int]) -> None:
        """Copy the rows back."""
        self._array[begin * self._chunk_steps : end * self._chunk_steps] = arrays["rows"]
