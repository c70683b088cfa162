"""What joins a ProcessVector to its workers: messages on a socket and arrays in shared memory.

The memory is a memfd: it has no name, so nothing is left behind however the processes end. A
message is one byte that says what it is, the length of its payload, and the payload: JSON, or
arrays as JSON and raw bytes. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from rookery.core.patience import Patience
from rookery.core.signature import form_from_json, form_to_json
from rookery.core.spec import Arrays, ArraySpec, LeafSpec

_HEADER = struct.Struct("<cQ")
_ALIGN = 64
_LOOK_SECS = 1.0
"""Whoever waits looks so often; see :mod:`rookery.core.patience`."""

START = b"b"
"""To the worker: the configuration (JSON). Answer DONE with its leaves."""
LAYOUT = b"l"
"""To the worker: the arrays of the shared memory (JSON), which now has its size. Answer DONE."""
RESET = b"r"
"""To the worker: reset; observations go to shared memory. Answer DONE."""
STEP = b"s"
"""To the worker: step with the actions in shared memory. Answer DONE, 1 if an episode ended."""
SAVE = b"d"
"""To the worker: answer DONE with the state (arrays and JSON), empty if there is none."""
LOAD = b"u"
"""To the worker: continue from this state. Answer DONE with the rows that lost their episode."""
CLOSE = b"q"
"""To the worker: close the environments and exit. No answer."""
DONE = b"k"
"""From the worker: done."""
FAULT = b"f"
"""From the worker: it failed and exits; JSON with the message and the traceback."""


class LinkClosedError(Exception):
    """The other side is gone."""


class Link:
    """One side of the socket between a vector and one worker."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send one message."""
        try:
            self._sock.sendall(_HEADER.pack(kind, len(payload)) + payload)
        except OSError as error:
            raise LinkClosedError from error

    def receive(self, timeout_secs: float | None) -> tuple[bytes, bytes]:
        """The next message; TimeoutError if none comes in time (None: wait for ever)."""
        self._sock.settimeout(None if timeout_secs is None else min(timeout_secs, _LOOK_SECS))
        patience = Patience(math.inf if timeout_secs is None else timeout_secs)
        kind, length = _HEADER.unpack(self._exactly(_HEADER.size, patience))
        return kind, self._exactly(length, patience) if length else b""

    def _exactly(self, count: int, patience: Patience) -> bytes:
        parts: list[bytes] = []
        while count:
            try:
                part = self._sock.recv(min(count, 1 << 20))
            except TimeoutError:
                if patience.over():
                    raise
                continue
            except OSError as error:
                raise LinkClosedError from error
            if not part:
                raise LinkClosedError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close this side; the other one sees the end."""
        self._sock.close()


def map_arrays(fd: int, specs: Mapping[str, ArraySpec]) -> Arrays:
    """Arrays in the memory behind ``fd``, laid out in the order of ``specs``."""
    memory = mmap.mmap(fd, _num_bytes(specs))
    arrays: Arrays = {}
    offset = 0
    for name, spec in specs.items():
        arrays[name] = np.ndarray(spec.shape, spec.dtype, buffer=memory, offset=offset)
        offset += _aligned(spec)
    return arrays


def allocate(fd: int, specs: Mapping[str, ArraySpec]) -> None:
    """Give the memory behind ``fd`` the size that ``specs`` need."""
    os.ftruncate(fd, _num_bytes(specs))


def _num_bytes(specs: Mapping[str, ArraySpec]) -> int:
    return sum(_aligned(spec) for spec in specs.values())


def _aligned(spec: ArraySpec) -> int:
    return max(-(-spec.num_bytes // _ALIGN), 1) * _ALIGN


def encode_specs(specs: Mapping[str, ArraySpec]) -> bytes:
    """Array descriptions as JSON."""
    return json.dumps([[name, spec.shape, spec.dtype.str] for name, spec in specs.items()]).encode()


def decode_specs(payload: bytes) -> dict[str, ArraySpec]:
    """The inverse of :func:`encode_specs`."""
    return {
        name: ArraySpec(tuple(shape), np.dtype(dtype)) for name, shape, dtype in json.loads(payload)
    }


def pack_arrays(arrays: Arrays, data: Any = None) -> bytes:
    """Arrays and JSON data as one payload."""
    specs = [[name, array.shape, array.dtype.str] for name, array in arrays.items()]
    header = json.dumps({"arrays": specs, "data": data}).encode()
    raw = [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
    return b"".join([struct.pack("<Q", len(header)), header, *raw])


def unpack_arrays(payload: bytes) -> tuple[Arrays, Any]:
    """The inverse of :func:`pack_arrays`."""
    (length,) = struct.unpack_from("<Q", payload)
    header = json.loads(payload[8 : 8 + length])
    arrays: Arrays = {}
    offset = 8 + length
    for name, shape, dtype in header["arrays"]:
        spec = ArraySpec(tuple(shape), np.dtype(dtype))
        flat = np.frombuffer(payload, spec.dtype, spec.num_bytes // spec.dtype.itemsize, offset)
        arrays[name] = flat.reshape(spec.shape).copy()
        offset += spec.num_bytes
    return arrays, header["data"]


def pack_leaves(obs: Mapping[str, LeafSpec], action: LeafSpec) -> bytes:
    """The leaves of an environment as one payload."""
    arrays: Arrays = {}
    plain: list[list[Any]] = []
    for index, (name, leaf) in enumerate([*obs.items(), ("", action)]):
        form = form_to_json(leaf.env_form)
        plain.append([name, leaf.kind, leaf.shape, leaf.dtype.str, leaf.sizes, form])
        for side, bound in (("low", leaf.low), ("high", leaf.high)):
            if bound is not None:
                arrays[f"{index}/{side}"] = bound
    return pack_arrays(arrays, plain)


def unpack_leaves(payload: bytes) -> tuple[dict[str, LeafSpec], LeafSpec]:
    """The inverse of :func:`pack_leaves`."""
    arrays, plain = unpack_arrays(payload)
    leaves: list[tuple[str, LeafSpec]] = []
    for index, (name, kind, shape, dtype, sizes, form) in enumerate(plain):
        low, high = (arrays.get(f"{index}/{side}") for side in ("low", "high"))
        carried = tuple(shape), np.dtype(dtype), tuple(sizes)
        leaves.append((name, LeafSpec(kind, *carried, low, high, form_from_json(form))))
    return dict(leaves[:-1]), leaves[-1][1]
