"""Frames of relays as bytes; ``wire.proto`` says what they mean.

What is packed has the dtypes and shapes that both sides computed from the settings, and whatever
else comes is refused before it is looked at: a peer decides neither how much memory is taken nor
how bytes are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
_SMALL_BYTES = 512
"""To copy fewer costs less than to look at them as bytes."""
WORTH_SENDING = 0.875
"""And so are those that LZ4 leaves larger than this part of them."""

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
    try:
        for number, arrays in frames:
            frame = packet.frames.add(relay=number)
            about = [_add(parts, name, array) for name, array in arrays.items()]
            frame.MergeFromString(b"".join(about))
        head: bytes = packet.SerializeToString()
    except (EncodeError, DecodeError, ValueError) as error:
        raise WireError(f"a frame that is too large for one message: {error}") from error
    parts[:2] = _LENGTH.pack(len(head)), head
    return b"".join(parts)


def _add(parts: list[Any], name: str, array: Array) -> bytes:
    """Append the bytes of ``array`` as they are sent; what is said of them."""
    codec, data = _coded(array)
    parts.append(data)
    return _described(name, array.dtype, array.shape, codec, len(data))


@lru_cache(4096)
def _described(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], codec: pb.Array.Codec, num_bytes: int
) -> bytes:
    """What a frame says of one array: the same again and again of those that are sent plain."""
    array = pb.Array(name=name, dtype=dtype.str, shape=shape, codec=codec, num_bytes=num_bytes)
    described: bytes = pb.Frame(arrays=[array]).SerializeToString()
    return described


def _coded(array: Array) -> tuple[pb.Array.Codec, memoryview | bytes]:
    """Compressed where that saves enough, by what ``benchmarks/wire.py`` measures: to try it costs
    next to nothing where it does not, as LZ4 then hurries on, so nothing is guessed from dtypes."""
    if array.nbytes < _SMALL_BYTES:
        return pb.Array.NONE, array.tobytes()
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    if len(data) >= MIN_COMPRESSED_BYTES:
        packed: bytes = lz4.block.compress(data, store_size=False)
        if len(packed) < len(data) * WORTH_SENDING:
            return pb.Array.LZ4, packed
    return pb.Array.NONE, data


# ---- unpacking -----------------------------------------------------------------------------------


def unpack(data: bytes, specs: Specs) -> Frames:
    """The frames of one message, all checked; their arrays may be read-only views of it."""
    return Reader(specs).frames(data)


class Reader:
    """Unpacks the messages of one exchange.

    What a message says of its arrays is checked once for all messages that say the same, as those
    do whose arrays are sent plain.
    """

    def __init__(self, specs: Specs) -> None:
        self.specs = specs
        self._checked: dict[bytes, list[_Announced]] = {}

    def frames(self, data: bytes) -> Frames:
        """As :func:`unpack`."""
        head, body = _split(data)
        announced = self._checked.get(head)
        if announced is None:
            announced = list(_announced(parsed(pb.Packet(), head), self.specs))
            if len(head) <= _LONGEST_CHECKED and len(self._checked) < _MOST_CHECKED:
                self._checked[head] = announced
        found: Frames = []
        size = at = 0
        for frame in announced:
            arrays = Arrays()
            for part in frame.arrays:
                end = at + part.num_bytes
                arrays[part.name] = part.read(body[at:end])
                at = end
            size += frame.num_bytes
            if size > PACKET_BYTES and len(announced) > 1:
                raise WireError(f"frames of more than {PACKET_BYTES} bytes in one message")
            found.append((frame.relay, arrays))
        if at != len(body):
            raise WireError(f"{len(body)} bytes of arrays, where {at} were announced")
        return found


_MOST_CHECKED, _LONGEST_CHECKED = 256, 1 << 14
"""How many heads a reader remembers, and of how many bytes: what a peer says takes no more."""


@dataclass(frozen=True, slots=True)
class _Announced:
    """A frame that is to be found in a message."""

    relay: int
    arrays: list[_Part]
    num_bytes: int
    """Of its arrays, once they are read."""


def _announced(packet: pb.Packet, specs: Specs) -> Iterator[_Announced]:
    """What ``packet`` says of the frames that follow, if that is as ``specs`` say."""
    for frame in packet.frames:
        known, parts = specs.get(frame.relay), dict[str, _Part]()
        if known is None:
            raise WireError(f"a frame of relay {frame.relay}, which is not here")
        for part in frame.arrays:
            if part.name in parts:
                where = _where(part.name, frame.relay)
                raise WireError(f"an array {where} that is there twice")
            parts[part.name] = _part(part, frame.relay, known.get(part.name))
        size = sum(part.num_plain for part in parts.values())
        yield _Announced(frame.relay, list(parts.values()), size)


def _split(data: bytes) -> tuple[bytes, memoryview]:
    """What a message says of its arrays, and their bytes."""
    if len(data) < _LENGTH.size:
        raise WireError(f"{len(data)} bytes that are no message")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if end > len(data):
        raise WireError(f"{len(data)} bytes, where {end} were announced")
    return data[_LENGTH.size : end], memoryview(data)[end:]


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


@dataclass(frozen=True, slots=True)
class _Part:
    """An array that is to be found in a message, of the dtype and shape that are expected."""

    name: str
    relay: int
    spec: ArraySpec
    codec: int
    num_bytes: int
    """As it is sent."""
    num_plain: int
    """As it is read."""

    def read(self, data: memoryview) -> Array:
        """The array, if its bytes are as the spec says."""
        spec = self.spec
        plain = data if self.codec == pb.Array.NONE else self._decompressed(data)
        if len(plain) != self.num_plain:
            raise self._wrong(f"has {len(plain)} bytes, not {self.num_plain}")
        if spec.dtype == np.bool_ and bytes(plain).translate(None, b"\0\1"):
            raise self._wrong("has bools that are neither 0 nor 1")
        array = np.ndarray(spec.shape, spec.dtype, plain)
        if spec.sizes and not _choices(array, spec.sizes):
            raise self._wrong(f"has choices beyond {list(spec.sizes[:8])}")
        if spec.finite and np.count_nonzero(np.isfinite(array)) < array.size:
            raise self._wrong("has values that are not finite")
        return array

    def _decompressed(self, data: memoryview) -> bytes:
        """In memory of the size that is expected."""
        try:
            plain: bytes = lz4.block.decompress(data, uncompressed_size=self.num_plain)
        except (lz4.block.LZ4BlockError, ValueError, OverflowError) as error:
            raise self._wrong("cannot be decompressed") from error
        return plain

    def _wrong(self, what: str) -> WireError:
        return WireError(f"{_where(self.name, self.relay)} {what}")


def _part(part: pb.Array, relay: int, spec: ArraySpec | None) -> _Part:
    """What is said of one array, if that is as ``spec`` says."""
    if spec is None:
        raise WireError(f"an array {_where(part.name, relay)}, which it does not take")
    dtype, num_plain = _form(spec)
    if part.dtype != dtype or tuple(part.shape) != spec.shape:
        found = f"{part.dtype[:16]} {list(part.shape[:8])}"
        raise WireError(f"{_where(part.name, relay)} is {found}, not {dtype} {list(spec.shape)}")
    compressed = part.codec == pb.Array.LZ4 and num_plain
    if part.codec != pb.Array.NONE and not compressed:
        raise WireError(f"{_where(part.name, relay)} has codec {part.codec}, which it cannot have")
    return _Part(part.name, relay, spec, part.codec, part.num_bytes, num_plain)


@lru_cache(4096)
def _form(spec: ArraySpec) -> tuple[str, int]:
    """What NumPy computes anew each time it is asked: how the dtype is written, and the bytes."""
    return spec.dtype.str, spec.num_bytes


def _where(name: str, relay: int) -> str:
    return f"'{name[:64]}' of relay {relay}"


def _choices(array: Array, sizes: tuple[int, ...]) -> bool:
    """Whether all are from 0 and below ``sizes``."""
    unsigned = array.reshape(-1, len(sizes)).astype(np.uint64)  # negative ones are large
    return not np.count_nonzero(unsigned >= np.array(sizes, np.uint64))
