"""What a hostile peer, or a host gone wrong, may send to a head.

::

    python -m tests.hostile 127.0.0.1:5500 --token-file runs/first/token --rate 50 --secs 30

sends messages to every service, so many a second, and prints how often which status came back.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import lz4.block
import numpy as np

import rookery
from rookery.carriers import wire_pb2 as pb
from rookery.carriers.wire import VERSION, Frames, Specs, pack
from rookery.core.signature import Signature
from rookery.core.spec import Array, zeros
from rookery.engines.joined import JoinedReplicas
from rookery.programs.plan import Plan
from rookery.recipes.settings import config_from_tree

CONTROL = "/rookery.wire.Control"
EXCHANGE = "/rookery.wire.Exchange/Exchange"
SERVICES = ("Register", "Heartbeat", "Leave", "Exchange")
MOST_BYTES = 1 << 20
SECS = 30.0


# ---- messages ------------------------------------------------------------------------------------


def mutated(rng: np.random.Generator, data: bytes) -> bytes:
    """Some bytes of ``data`` changed, cut, repeated or replaced."""
    array = np.frombuffer(data, np.uint8).copy()
    start, stop = sorted(rng.integers(0, len(array) + 1, 2).tolist())
    changes: list[Callable[[], Array]] = [
        lambda: array[:start],
        lambda: array[start:],
        lambda: np.concatenate([array[:start], array[stop:]]),
        lambda: np.concatenate([array[:stop], array[start:]]),
        lambda: rng.integers(0, 256, start % 400, np.uint8),
    ]
    kind = int(rng.integers(len(changes) + 4))
    if kind < len(changes):
        return bytes(changes[kind]())
    where = rng.integers(0, min(len(array), 200), int(rng.integers(1, 5)))  # mostly names and sizes
    array[where] = rng.integers(0, 256, len(where))
    return bytes(array)


def message(packet: pb.Packet, *bodies: bytes) -> bytes:
    """As it is sent."""
    head = packet.SerializeToString()
    return struct.pack("<I", len(head)) + head + b"".join(bodies)


def noise(rng: np.random.Generator, most: int = 4000) -> bytes:
    """Random bytes."""
    return rng.integers(0, 256, int(rng.integers(most)), np.uint8).tobytes()


TENSORS: dict[str, Callable[[np.random.Generator, pb.Packet, pb.Array, list[bytes]], None]] = {
    "truncated": lambda rng, _, part, body: _cut(rng, part, body, announced=True),
    "shorter than it says": lambda rng, _, part, body: _cut(rng, part, body, announced=False),
    "huge": lambda rng, _, part, __: part.shape.extend([2 ** int(rng.integers(20, 63))] * 2),
    "many axes": lambda rng, _, part, __: part.shape.extend([1] * int(rng.integers(1, 5000))),
    "huge count": lambda rng, _, part, __: setattr(part, "num_bytes", 2 ** int(rng.integers(64))),
    "dtype": lambda rng, _, part, __: setattr(
        part, "dtype", str(rng.choice(["<f8", ">f4", "|O", "<M8[s]", "|V9", "x" * 10_000, ""]))
    ),
    "name": lambda rng, _, part, __: setattr(part, "name", "x" * int(rng.integers(10_000))),
    "bomb": lambda _, __, part, body: _bomb(part, body),
    "codec": lambda rng, _, part, __: setattr(part, "codec", int(rng.integers(1, 9))),
    "version": lambda rng, packet, _, __: setattr(packet, "version", _other_version(rng)),
    "relay": lambda rng, packet, _, __: setattr(
        packet.frames[0], "relay", int(rng.integers(2**32))
    ),
    "twice": lambda _, packet, part, body: _again(packet, part, body),
}
"""What may be wrong with one array of a message: it is given the array and all bodies."""


def _cut(rng: np.random.Generator, part: pb.Array, body: list[bytes], *, announced: bool) -> None:
    body[0] = body[0][: int(rng.integers(len(body[0]) + 1))]
    if announced:
        part.num_bytes = len(body[0])


def _bomb(part: pb.Array, body: list[bytes]) -> None:
    body[0] = lz4.block.compress(bytes(10**6), store_size=False)
    part.codec, part.num_bytes = pb.Array.LZ4, len(body[0])


def _again(packet: pb.Packet, part: pb.Array, body: list[bytes]) -> None:
    packet.frames[0].arrays.append(part)
    body.append(body[0])


def _other_version(rng: np.random.Generator) -> int:
    return int(rng.choice([0, VERSION - 1, VERSION + 1, 2**32 - 1]))


def spoiled(rng: np.random.Generator, frames: Frames) -> bytes:
    """``frames`` as one message in which something is wrong."""
    kind = int(rng.integers(len(TENSORS) + 3))
    if kind == len(TENSORS):
        return noise(rng)
    if kind > len(TENSORS):
        return mutated(rng, pack(frames))
    number, arrays = frames[int(rng.integers(len(frames)))]
    name = str(rng.choice(sorted(arrays)))
    array = np.ascontiguousarray(arrays[name])
    packet, body = pb.Packet(version=VERSION), [array.tobytes()]
    part = packet.frames.add(relay=number).arrays.add(
        name=name, dtype=array.dtype.str, shape=array.shape, num_bytes=array.nbytes
    )
    list(TENSORS.values())[kind](rng, packet, part, body)
    return message(packet, *body)


def spoiled_control(rng: np.random.Generator, good: Any) -> bytes:
    """The same of a message to Control."""
    kind = int(rng.integers(6))
    if kind == 0:
        return noise(rng)
    if kind > 2:
        return mutated(rng, good.SerializeToString())
    changed = type(good)()
    changed.CopyFrom(good)
    if kind == 1:
        changed.version = _other_version(rng)
    else:
        word = "host" if isinstance(good, pb.RegisterRequest) else "session"
        setattr(changed, word, "x" * int(rng.integers(1 << 17)))
    data: bytes = changed.SerializeToString()
    return data


class Hostile:
    """A peer that has the token and sends what it should not."""

    def __init__(self, address: str, token: str, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.metadata = (("authorization", f"Bearer {token}"),)
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(address, options)
        self.identity = self.rng.bytes(16).hex()
        self.sessions = [""]
        """Those that it has, and has had: all of them are used again."""
        self.frames: Frames = [(0, {"n": np.array(1)})]
        """What a host may send."""
        self.specs: Specs = {}

    def close(self) -> None:
        self.channel.close()

    def register(self, host: str = "hostile", actors: int = 1) -> Any:
        """A session, by the rules."""
        request = pb.RegisterRequest(
            version=VERSION,
            rookery_version=rookery.__version__,
            host=host,
            num_actors=actors,
            identity=self.identity,
        )
        found = pb.Assignment()
        found.ParseFromString(self.call("Register", request.SerializeToString()))
        self.sessions = [*self.sessions[-20:], found.session]
        return found

    def learn_frames(self, assignment: Any) -> None:
        """Which frames the relays of ``assignment`` take: those of every place, all zeros."""
        plan = Plan.of(
            config_from_tree(json.loads(assignment.config), "the head's settings"),
            Signature.from_json(json.loads(assignment.signature)),
        )
        program = plan.program()
        places = [place.place for place in assignment.places]
        actors = JoinedReplicas.create(program, program.acting, places)
        self.specs = {c.number: c.relay.sends for c in actors.relays() if c.relay.sends}
        self.frames = [(number, zeros(specs)) for number, specs in self.specs.items()]
        actors.close()

    def call(self, name: str, data: bytes, **given: Any) -> Any:
        given = {"timeout": SECS, "metadata": self.metadata} | given
        return self.channel.unary_unary(f"{CONTROL}/{name}")(data, **given)

    def exchange(self, session: str, messages: Iterator[bytes], **given: Any) -> Any:
        given = {"metadata": (*self.metadata, ("rookery-session", session))} | given
        return self.channel.stream_stream(EXCHANGE)(messages, **given)

    def turn(self, service: str) -> Any:
        """One message that is wrong; the status it ended with."""
        try:
            if service == "Exchange":
                list(self.exchange(self._session(), self._messages(), timeout=SECS))
            else:
                self.call(service, spoiled_control(self.rng, self._good(service)))
        except grpc.RpcError as error:
            return error.code()  # type: ignore[attr-defined]
        return grpc.StatusCode.OK

    def _session(self) -> str:
        return str(self.rng.choice(self.sessions))

    def _good(self, service: str) -> Any:
        if service == "Register":
            return pb.RegisterRequest(
                version=VERSION, rookery_version=rookery.__version__, host="hostile", num_actors=1
            )
        kind = {"Heartbeat": pb.HeartbeatRequest, "Leave": pb.LeaveRequest}[service]
        return kind(version=VERSION, session=self._session())

    def _messages(self) -> Iterator[bytes]:
        """Good ones, a spoiled one, and what came before once more, perhaps beyond all credits."""
        good = pack(self.frames[:20])
        for _ in range(int(self.rng.integers(3))):
            yield good
        yield spoiled(self.rng, self.frames)
        for _ in range(40 * (not self.rng.integers(10))):
            yield good


# ---- connections ---------------------------------------------------------------------------------

_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS_TYPE, _PING, _ACK, _END_HEADERS = 0, 1, 4, 6, 1, 4


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def _headers(path: str, words: Sequence[tuple[str, str]]) -> bytes:
    """HPACK without any table: each a literal."""
    pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "head")]
    body = b""
    for name, value in [*pseudo, ("te", "trailers"), ("content-type", "application/grpc"), *words]:
        assert max(len(name), len(value)) < 127
        body += bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return body


def _call_begun(path: str, words: Sequence[tuple[str, str]], sent: bytes) -> bytes:
    """A call whose first message has begun."""
    begun = _frame(_HEADERS, _END_HEADERS, 1, _headers(path, words))
    return _PREFACE + _SETTINGS + begun + _frame(_DATA, 0, 1, sent)


HALF_A_MESSAGE = b"\0" + struct.pack(">I", MOST_BYTES) + b"x" * 100
"""It says that a megabyte follows."""


def half_open(token: str) -> dict[str, bytes]:
    """What peers may send before they fall silent."""
    control = [("authorization", f"Bearer {token}"), ("grpc-timeout", "2S")]
    exchange = [control[0], ("rookery-session", "s1")]
    headers = _frame(_HEADERS, _END_HEADERS, 1, _headers(f"{CONTROL}/Register", control))
    unfinished = _frame(_HEADERS, 0, 1, _headers(f"{CONTROL}/Register", control))
    return {
        "nothing": b"",
        "half a preface": _PREFACE[:10],
        "settings": _PREFACE + _SETTINGS,
        "half the head of a frame": _PREFACE + _SETTINGS + headers[:5],
        "half a frame": _PREFACE + _SETTINGS + headers[: len(headers) // 2],
        "headers that do not end": _PREFACE + _SETTINGS + unfinished,
        "half a message to Control": _call_begun(f"{CONTROL}/Register", control, HALF_A_MESSAGE),
        "half a message to Exchange": _call_begun(EXCHANGE, exchange, HALF_A_MESSAGE),
        "half a message without the token": _call_begun(EXCHANGE, [], HALF_A_MESSAGE),
        "half of TLS": bytes.fromhex("1603010200010001fc0303") + bytes(20),
    }


class HalfOpen:
    """A connection on which ``sent`` was sent, and nothing follows.

    ``answers``: but for answers to the head's settings and pings, as a peer that lives gives them.
    """

    def __init__(self, address: tuple[str, int], sent: bytes, *, answers: bool = False) -> None:
        self.socket = socket.create_connection(address, SECS)
        self.closed = threading.Event()
        """By the head."""
        with contextlib.suppress(OSError):
            self.socket.sendall(sent)
        threading.Thread(target=self._read, args=(answers,), daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def _read(self, answers: bool) -> None:
        data = b""
        self.socket.settimeout(None)
        with contextlib.suppress(OSError):
            while got := self.socket.recv(1 << 16):
                data = self._answer(data + got) if answers else b""
        self.closed.set()

    def _answer(self, data: bytes) -> bytes:
        """To the frames in ``data``; what is left of it."""
        while len(data) >= 9 and len(data) >= (end := 9 + int.from_bytes(data[:3], "big")):
            kind, flags, body = data[3], data[4], data[9:end]
            if kind in (_SETTINGS_TYPE, _PING) and not flags & _ACK:
                answer = body if kind == _PING else b""
                self.socket.sendall(_frame(kind, _ACK, 0, answer))
            data = data[end:]
        return data


# ---- as a process --------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--rate", type=float, default=50.0, help="messages a second")
    parser.add_argument("--secs", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--say-begun", action="store_true", help="print a line before the first")
    given = parser.parse_args()
    hostile = Hostile(given.address, given.token_file.read_text().strip(), given.seed)
    hostile.learn_frames(hostile.register())
    if given.say_begun:
        print("begun", flush=True)
    seen: dict[str, int] = {}
    begun, turns = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < given.secs:
        if turns > passed * given.rate:
            time.sleep(1 / given.rate)
            continue
        if turns % 200 == 199:
            with contextlib.suppress(grpc.RpcError):  # it has taken all places itself
                hostile.register()
        code = hostile.turn(SERVICES[turns % len(SERVICES)])
        seen[code.name] = seen.get(code.name, 0) + 1
        turns += 1
    print(json.dumps({"messages": turns, "secs": round(passed, 1), "answers": seen}))
    hostile.close()


if __name__ == "__main__":
    main()
