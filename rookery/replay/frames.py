"""Stacked frames, each kept once and compressed.

An observation ``[S, ...]`` of S stacked frames shares S-1 of them with the one before. So a chunk
keeps a list of frames, and of each row only where its stack begins in it. Whether the stacks
overlap is looked up, never assumed: a row that does not continue the one before (the first of an
episode, however its stack was filled, or a stack that is none) brings all its frames. What is read
is what was written, to the bit. An image with its channels last, ``[H, W, C]``, is a stack of one.

A full chunk is compressed with lz4, whose window spans several frames: what did not move is free.

Shapes: S frames a stack, F frames in a chunk; rows as in ``columns.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import lz4.block
import numpy as np

from rookery.core.spec import Array, Arrays, ArraySpec, channels_are_last

_OBJECT_BYTES = 41
"""What Python adds to the bytes of a compressed chunk: a header, and a place in a list."""


def num_stacked(shape: tuple[int, ...]) -> int:
    """Frames in one observation of ``shape``."""
    return 1 if len(shape) == 3 and channels_are_last(shape) else shape[0]


class FrameColumn:
    """Rows of stacked frames."""

    parts: tuple[str, ...] = ("packed", "packed_bytes", "num_frames", "begins")

    def __init__(self, spec: ArraySpec, num_chunks: int, chunk_steps: int) -> None:
        if not spec.shape:
            raise ValueError("a single number is no stack of frames")
        self.spec = spec
        self._stack = num_stacked(spec.shape)
        self._frame_shape = spec.shape if self._stack == 1 else spec.shape[1:]
        self._chunk_steps = chunk_steps
        self._begins = np.zeros(num_chunks * chunk_steps, np.uint32)  # of each row, in its chunk
        self._num_frames = np.zeros(num_chunks, np.uint32)
        self._packed: list[bytes | None] = [None] * num_chunks
        self._open: dict[int, Array] = {}  # frames [F, ...] of chunks that are being filled
        self._packed_bytes = 0

    def write(self, rows: Array, values: Array) -> None:
        """Add the new frames of each row to its chunk."""
        stacks = values.reshape(-1, self._stack, *self._frame_shape)
        for row, stack in zip(rows.tolist(), stacks, strict=True):
            chunk, offset = divmod(row, self._chunk_steps)
            if offset == 0:
                self._reopen(chunk)
            frames, count = self._open[chunk], int(self._num_frames[chunk])
            begin = int(self._begins[row - 1]) + 1 if offset else 0
            if not offset or not np.array_equal(frames[begin:count], stack[:-1]):
                begin = count
            fresh = begin + self._stack - count
            if begin + self._stack > len(frames):
                frames = self._open[chunk] = np.concatenate([frames, np.empty_like(frames)])
            frames[count : count + fresh] = stack[self._stack - fresh :]
            self._begins[row] = begin
            self._num_frames[chunk] = count + fresh

    def close(self, chunk: int) -> None:
        """Compress the chunk."""
        frames = self._open.pop(chunk)[: self._num_frames[chunk]]
        self._pack(chunk, lz4.block.compress(frames, store_size=False))

    def read(self, rows: Array, out: Array) -> None:
        """Unpack each chunk once and copy the stacks out."""
        flat = rows.reshape(-1)
        target = out.reshape(-1, self._stack, *self._frame_shape)
        target[flat == len(self._begins)] = 0
        for chunk, places in self._by_chunk(flat):
            frames = self._frames(chunk)
            for place, begin in zip(
                places.tolist(), self._begins[flat[places]].tolist(), strict=True
            ):
                target[place] = frames[begin : begin + self._stack]

    @property
    def num_bytes(self) -> int:
        """Bytes of the compressed chunks, the open ones and the index."""
        index = self._begins.nbytes + self._num_frames.nbytes
        frames = sum(frames.nbytes for frames in self._open.values())
        return int(index + frames + self._packed_bytes + _OBJECT_BYTES * len(self._packed))

    @property
    def frame_bytes(self) -> float:
        """What a compressed frame takes on average; 0 before the first chunk is full."""
        full = np.array([packed is not None for packed in self._packed])
        return self._packed_bytes / max(int(self._num_frames[full].sum()), 1)

    def save(self, begin: int, end: int) -> Arrays:
        """The compressed chunks end to end, and where their frames are."""
        packed = [self._packed_now(chunk) for chunk in range(begin, end)]
        return {
            "packed": np.frombuffer(b"".join(packed), np.uint8),
            "packed_bytes": np.array([len(part) for part in packed], np.uint32),
            "num_frames": self._num_frames[begin:end],
            "begins": self._begins[begin * self._chunk_steps : end * self._chunk_steps],
        }

    def load(self, begin: int, end: int, arrays: Arrays, open_chunks: set[int]) -> None:
        """Take the compressed chunks over; open ones are unpacked."""
        self._num_frames[begin:end] = arrays["num_frames"]
        self._begins[begin * self._chunk_steps : end * self._chunk_steps] = arrays["begins"]
        ends = np.cumsum(arrays["packed_bytes"], dtype=np.int64).tolist()
        packed = np.asarray(arrays["packed"], np.uint8)
        for chunk, until, size in zip(
            range(begin, end), ends, arrays["packed_bytes"].tolist(), strict=True
        ):
            self._pack(chunk, packed[until - size : until].tobytes() if size else None)
            self._open.pop(chunk, None)
            if chunk in open_chunks:
                frames = self._frames(chunk).copy()
                self._reopen(chunk)
                self._num_frames[chunk] = len(frames)
                room = np.empty((max(len(frames), self._room()), *self._frame_shape), frames.dtype)
                room[: len(frames)] = frames
                self._open[chunk] = room

    def _by_chunk(self, flat: Array) -> Iterator[tuple[int, Array]]:
        """Each chunk that real rows are in, with the places of those rows."""
        real = np.flatnonzero(flat != len(self._begins))
        if not len(real):
            return
        chunks = flat[real] // self._chunk_steps
        order = np.argsort(chunks, kind="stable")
        cuts = np.flatnonzero(np.diff(chunks[order])) + 1
        for places in np.split(real[order], cuts):
            yield int(flat[places[0]]) // self._chunk_steps, places

    def _frames(self, chunk: int) -> Array:
        """``[F, ...]``"""
        if chunk in self._open:
            return self._open[chunk]
        shape = (int(self._num_frames[chunk]), *self._frame_shape)
        size = int(np.prod(shape)) * self.spec.dtype.itemsize
        data = lz4.block.decompress(self._packed[chunk], uncompressed_size=size)
        return np.frombuffer(data, self.spec.dtype).reshape(shape)

    def _packed_now(self, chunk: int) -> bytes:
        if chunk in self._open:
            frames = self._open[chunk][: self._num_frames[chunk]]
            return bytes(lz4.block.compress(frames, store_size=False))
        return self._packed[chunk] or b""

    def _pack(self, chunk: int, data: bytes | None) -> None:
        self._packed_bytes += len(data or b"") - len(self._packed[chunk] or b"")
        self._packed[chunk] = data

    def _reopen(self, chunk: int) -> None:
        self._pack(chunk, None)
        self._num_frames[chunk] = 0
        self._open[chunk] = np.empty((self._room(), *self._frame_shape), self.spec.dtype)

    def _room(self) -> int:
        """Frames of a chunk of one episode; one with several ends in it grows."""
        return self._chunk_steps + 2 * self._stack
