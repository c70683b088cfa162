"""Frames of relays as bytes; ``wire.proto`` says what they mean.

What is packed has the dtypes and shapes that both sides computed from the settings, and whatever
else comes is refused before it is looked at: a peer decides neither how much memory is taken nor
how bytes are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import lz4.block
import numpy as np

from rookery.core.hosts import missing_extra
from rookery.core.spec import Array, Arrays, ArraySpec

try:
    from google.protobuf.message import DecodeError, EncodeError, Message

    from rookery.carriers import wire_pb2 as pb
except ImportError as error:
    raise missing_extra(error) from error

VERSION = 3
"""Of ``wire.proto``."""
PACKET_BYTES = 1 << 20
"""Frames that travel together have at most so many bytes, uncompressed: larger messages cost more
by the byte, in fresh memory, than they save by the message."""
OVERHEAD_BYTES = 1 << 16
"""More than what names, dtypes and shapes of a frame take."""
MIN_COMPRESSED_BYTES = 512
"""Smaller arrays are sent as they are."""
WORTH_SENDING = 0.875
"""And those that LZ4 leaves larger than this part of them."""

Frames = list[tuple[int, Arrays]]
"""Each with the number of its relay, in their order."""
Specs = Mapping[int, Mapping[str, ArraySpec]]
"""What each relay may be told."""


class WireError(Exception):
    """A message that ``wire.proto`` does not allow, or a frame for which there is no room."""


class OtherVersionError(WireError):
    """A message of another version of ``wire.proto``."""


M = TypeVar("M", bound=Message)
_VERSION_FIELD = "version"
_BOOL = np.dtype(np.bool_).str
_LENGTH = struct.Struct("<I")


def most_bytes(specs: Specs) -> int:
    """The largest message that frames of ``specs`` can make."""
    frames = (sum(spec.num_bytes for spec in arrays.values()) for arrays in specs.values())
    return max(PACKET_BYTES, *frames, 0) + OVERHEAD_BYTES


# ---- packing -------------------------------------------------------------------------------------


def packets(frames: Iterable[tuple[int, Arrays]]) -> Iterator[bytes]:
    """As few messages as hold ``frames``, in order."""
    together: Frames = []
    size = 0
    for number, arrays in frames:
        num_bytes = sum(array.nbytes for array in arrays.values())
        if together and size + num_bytes > PACKET_BYTES:
            yield pack(together)
            together, size = [], 0
        together.append((number, arrays))
        size += num_bytes
    if together:
        yield pack(together)


def pack(frames: Iterable[tuple[int, Arrays]]) -> bytes:
    """One message."""
    packet = pb.Packet(version=VERSION)
    parts: list[Any] = [b"", b""]
    for number, arrays in frames:
        frame = packet.frames.add(relay=number)
        for name, array in arrays.items():
            parts.append(_add(frame, name, array))
    try:
        head: bytes = packet.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise WireError(f"a frame that is too large for one message: {error}") from error
    parts[:2] = _LENGTH.pack(len(head)), head
    return b"".join(parts)


def _add(frame: pb.Frame, name: str, array: Array) -> Any:
    """Describe ``array``; its bytes, as they are sent."""
    codec, data = _coded(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    shape, dtype = array.shape, array.dtype.str
    frame.arrays.add(name=name, dtype=dtype, shape=shape, codec=codec, num_bytes=len(data))
    return data


def _coded(data: memoryview) -> tuple[pb.Array.Codec, memoryview | bytes]:
    """Compressed where that saves enough, by what ``benchmarks/wire.py`` measures: to try it costs
    next to nothing where it does not, as LZ4 then hurries on, so nothing is guessed from dtypes."""
    if len(data) >= MIN_COMPRESSED_BYTES:
        packed: bytes = lz4.block.compress(data, store_size=False)
        if len(packed) < len(data) * WORTH_SENDING:
            return pb.Array.LZ4, packed
    return pb.Array.NONE, data


# ---- unpacking -----------------------------------------------------------------------------------


def unpack(data: bytes, specs: Specs) -> Frames:
    """The frames of one message, all checked; their arrays may be read-only views of it."""
    packet, body = _split(data)
    found: Frames = []
    size = at = 0
    for frame in packet.frames:
        known, arrays = specs.get(frame.relay), Arrays()
        if known is None:
            raise WireError(f"a frame of relay {frame.relay}, which is not here")
        for part in frame.arrays:
            where, end = f"'{part.name[:64]}' of relay {frame.relay}", at + part.num_bytes
            if part.name in arrays:
                raise WireError(f"an array {where} that is there twice")
            arrays[part.name] = _array(part, body[at:end], known.get(part.name), where)
            at = end
        size += sum(array.nbytes for array in arrays.values())
        if size > PACKET_BYTES and len(packet.frames) > 1:
            raise WireError(f"frames of more than {PACKET_BYTES} bytes in one message")
        found.append((frame.relay, arrays))
    if at != len(body):
        raise WireError(f"{len(body)} bytes of arrays, where {at} were announced")
    return found


def _split(data: bytes) -> tuple[pb.Packet, memoryview]:
    """What a message says of its arrays, and their bytes."""
    if len(data) < _LENGTH.size:
        raise WireError(f"{len(data)} bytes that are no message")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if end > len(data):
        raise WireError(f"{len(data)} bytes, where {end} were announced")
    return parsed(pb.Packet(), data[_LENGTH.size : end]), memoryview(data)[end:]


def parsed(message: M, data: bytes) -> M:
    """``message`` filled from ``data``, if it is of this version."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes that are no {type(message).__name__}") from error
    version = getattr(message, _VERSION_FIELD)
    if version != VERSION:
        raise OtherVersionError(
            f"version {version} of the network link, and here is {VERSION}; install the same "
            "Rookery on all hosts"
        )
    return message


def _array(part: pb.Array, data: memoryview, spec: ArraySpec | None, where: str) -> Array:
    """What ``part`` describes, if it is as ``spec`` says."""
    if spec is None:
        raise WireError(f"an array {where}, which it does not take")
    dtype, num_bytes = _form(spec)
    if part.dtype != dtype or tuple(part.shape) != spec.shape:
        found = f"{part.dtype[:16]} {list(part.shape[:8])}"
        raise WireError(f"{where} is {found}, not {dtype} {list(spec.shape)}")
    plain = _plain(part, data, num_bytes, where)
    if len(plain) != num_bytes:
        raise WireError(f"{where} has {len(plain)} bytes, not {num_bytes}")
    if dtype == _BOOL and bytes(plain).translate(None, b"\0\1"):
        raise WireError(f"{where} has bools that are neither 0 nor 1")
    array = np.ndarray(spec.shape, spec.dtype, plain)
    if spec.sizes and not _choices(array, spec.sizes):
        raise WireError(f"{where} has choices beyond {list(spec.sizes[:8])}")
    if spec.finite and np.count_nonzero(np.isfinite(array)) < array.size:
        raise WireError(f"{where} has values that are not finite")
    return array


def _choices(array: Array, sizes: tuple[int, ...]) -> bool:
    """Whether all are from 0 and below ``sizes``."""
    unsigned = array.reshape(-1, len(sizes)).astype(np.uint64)  # negative ones are large
    return not np.count_nonzero(unsigned >= np.array(sizes, np.uint64))


@lru_cache(4096)
def _form(spec: ArraySpec) -> tuple[str, int]:
    """What NumPy computes anew each time it is asked: how the dtype is written, and the bytes."""
    return spec.dtype.str, spec.num_bytes


def _plain(part: pb.Array, data: memoryview, num_bytes: int, where: str) -> memoryview | bytes:
    """The bytes of the elements, in memory of the size that is expected."""
    if part.codec == pb.Array.NONE:
        return data
    if part.codec != pb.Array.LZ4 or not num_bytes:
        raise WireError(f"{where} has codec {part.codec}, which it cannot have")
    try:
        plain: bytes = lz4.block.decompress(data, uncompressed_size=num_bytes)
    except (lz4.block.LZ4BlockError, ValueError, OverflowError) as error:
        raise WireError(f"{where} cannot be decompressed") from error
    return plain
