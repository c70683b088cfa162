"""Peers of a real head that misbehave, beside a host that does not: nobody else notices."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from rookery.carriers.grpc_host import HostClient
from rookery.carriers.wire import Frames, pack
from rookery.core.hosts import HostStatus
from rookery.core.spec import ArraySpec
from tests.engines.test_hosts import ASYNC, REPLAY, SLOW_STEPS, Head, Joined, port, run
from tests.faults import processes as p
from tests.hostile import SERVICES, HalfOpen, Hostile, half_open

__all__ = ["port", "run"]
pytestmark = pytest.mark.slow

MOST_GROWN_BYTES = 32 << 20
LEASE_SECS = 4
VITALS = ("cells", "numbers")
BOUND = 256
"""On connections; as in :class:`rookery.carriers.grpc.Limits`."""


class Served:
    """A head that trains with one well-behaved host."""

    def __init__(self, run: Path, port: int, *flags: str) -> None:
        self.head = Head(
            run, port, *flags, *SLOW_STEPS, "--actors", "1", "--places", "6", "--steps", "1000000",
            "--policy.hidden", "[256, 256]", "--hosts.lease_secs", str(LEASE_SECS),
        )  # fmt: skip
        self.run, self.address = run, ("127.0.0.1", port)
        self.token = (run / "token").read_text().strip()
        self.host = self.head.join(1)
        self.head.hears("joined with 1 actors (1)")
        self.actors = p.until(lambda: len(self.host.actors()) == 1 and self.host.actors(), "actors")
        self.goes_on()
        self.members = p.members(run)

    def hostile(self, **given: Any) -> Hostile:
        return Hostile(self.head.address, self.token, **given)

    def goes_on(self) -> None:
        """Steps are made, with the host's actor."""

        def acting() -> bool:
            records = list(p.records(self.run))[-3:]
            fresh = [each for each in records if each["steps"] > before]
            return any(each.get("fleet/joined_actors", 0) >= 1 for each in fresh)

        before = p.steps(self.run)
        p.until(acting, "steps with the host")

    def memory(self) -> int:
        """Of the gateway."""
        rollup = Path(f"/proc/{p.members(self.run)['gateway-0']}/smaps_rollup").read_text()
        return next(
            int(line.split()[1]) * 1024
            for line in rollup.splitlines()
            if line.startswith("Private_Dirty:")
        )

    @contextlib.contextmanager
    def unharmed(self) -> Iterator[None]:
        """Nobody here notices what is done meanwhile, and nothing of it stays."""
        before = self.memory()
        yield
        self.goes_on()
        assert p.members(self.run) == self.members, self.head.said()
        assert self.host.actors() == self.actors, "its actors act on"
        assert "left with 1 actors (1)" not in self.head.said()
        assert "replaced" not in self.head.said()
        grown = self.memory() - before
        assert grown < MOST_GROWN_BYTES, f"{grown} bytes more"

    def end(self) -> None:
        self.head.process.send_signal(signal.SIGINT)
        self.head.ends(130)
        self.host.process.send_signal(signal.SIGINT)
        self.host.ends(130)
        log = (self.run / "logs" / "gateway-0.log").read_text()
        assert "Traceback" not in log, log


@pytest.fixture
def served(request: pytest.FixtureRequest, run: Path, port: int) -> Iterator[Served]:
    found = Served(run, port, *getattr(request, "param", REPLAY))
    yield found
    found.end()


def rounds(hostile: Hostile, num: int) -> None:
    """Wrong messages to every service, of a host that keeps registering."""
    for turn in range(num):
        if turn % 100 == 0:
            with contextlib.suppress(grpc.RpcError):  # it has all places itself
                hostile.register()
        assert hostile.turn(SERVICES[turn % len(SERVICES)]) not in (
            grpc.StatusCode.INTERNAL,
            grpc.StatusCode.UNKNOWN,
        )


def test_messages_that_are_wrong_harm_nobody_else(served: Served) -> None:
    hostile = served.hostile()
    hostile.learn_frames(hostile.register())
    rounds(hostile, 400)
    with served.unharmed():
        rounds(hostile, 1200)
    hostile.close()


def test_a_host_that_stops_reading_holds_up_nobody(served: Served) -> None:
    """It lives, by its heartbeats, and takes no weights; then it falls silent."""
    client = HostClient(served.head.address, token=served.token)
    with contextlib.ExitStack() as closing:
        closing.callback(client.close)
        readers = [served.hostile(seed=number) for number in range(3)]
        sessions, streams, over = [], [], []
        for number, reader in enumerate(readers):
            closing.callback(reader.close)
            sessions.append(reader.register(f"reader-{number}").session)
            stop, messages = pending(reader)
            over.append(stop)
            streams.append(reader.exchange(sessions[-1], messages))
            next(streams[-1])  # and never again
        with served.unharmed():
            deadline = time.monotonic() + 5 * LEASE_SECS
            while time.monotonic() < deadline:
                for session in sessions:
                    orders = client.heartbeat(session, HostStatus(actors_alive=1))
                    assert orders.state == "run", "it may be slow"
                time.sleep(0.5)
        with served.unharmed():
            for number in range(3):
                served.head.hears(f"host reader-{number} left with 1 actors")
        # Its thread at the gateway is free: others have the places.
        other = served.head.join(3)
        served.head.hears("joined with 3 actors (2 to 4)")
        other.process.send_signal(signal.SIGINT)
        other.ends(130)
        for stop in over:
            stop()


def pending(hostile: Hostile) -> tuple[Callable[[], None], Iterator[bytes]]:
    """Messages of a peer that sends one and keeps its stream open."""
    over = threading.Event()

    def messages() -> Iterator[bytes]:
        yield pack([])
        over.wait(p.PATIENCE_SECS)

    return over.set, messages()


def test_a_host_that_is_stopped_loses_its_places_and_comes_back(served: Served) -> None:
    """By SIGSTOP: its kernel takes what comes until that is full, and nobody reads it."""
    other = served.head.join(2)
    served.head.hears("joined with 2 actors (2 to 3)")
    with served.unharmed():
        os.kill(other.process.pid, signal.SIGSTOP)
        served.head.hears("left with 2 actors (2 to 3): ")
        os.kill(other.process.pid, signal.SIGCONT)
        said: Callable[[], str] = served.head.said
        p.until(lambda: said().count("joined with 2 actors (2 to 3)") == 2, "the host")
    other.process.send_signal(signal.SIGINT)
    other.ends(130)


def test_half_open_connections_up_to_the_bound_harm_nobody(served: Served) -> None:
    kinds = half_open(served.token)
    late: Joined | None = None
    with served.unharmed():
        silent = [HalfOpen(served.address, kinds["nothing"])]
        while len(silent) < BOUND + 30:
            sent = list(kinds.values())[len(silent) % len(kinds)]
            silent.append(HalfOpen(served.address, sent, answers=len(silent) % 2 == 0))
        served.goes_on()
        late = served.head.join(1)  # in as soon as those are cut off
        served.head.hears("joined with 1 actors (2)")
        p.until(lambda: all(half.closed.is_set() for half in silent), "them to be cut off")
        for half in silent:
            half.close()
    late.process.send_signal(signal.SIGINT)
    late.ends(130)


@pytest.mark.parametrize("served", [REPLAY, ASYNC], ids=["replay", "async"], indirect=True)
def test_what_has_the_right_form_and_means_nothing_harms_nobody_else(served: Served) -> None:
    """A host that sends random numbers where actions, ends and counts should stand."""
    hostile = served.hostile()
    hostile.learn_frames(hostile.register())
    with served.unharmed():
        for _ in range(200):
            with contextlib.suppress(grpc.RpcError):
                list(hostile.exchange(hostile.register().session, nonsense(hostile), timeout=30.0))
    hostile.close()


def nonsense(hostile: Hostile) -> Iterator[bytes]:
    """Frames of which every byte is drawn; of half of them so that they may be taken.

    What those observe and earn are numbers, as who may act may also spoil what is learned.
    """
    for turn in (1, 1, 0, 0):
        frames: Frames = []
        for number, specs in hostile.specs.items():
            arrays = {
                name: drawn(hostile.rng, spec, plausible=bool(turn) and name not in VITALS)
                for name, spec in specs.items()
            }
            frames.append((number, arrays))
        yield pack(frames)


def drawn(rng: np.random.Generator, spec: ArraySpec, *, plausible: bool) -> Any:
    if spec.dtype == np.bool_:
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    if plausible and spec.dtype.kind == "i":
        return rng.integers(0, min(spec.sizes, default=2), spec.shape).astype(spec.dtype)
    if plausible and spec.dtype.kind == "f":
        return rng.normal(size=spec.shape).astype(spec.dtype)
    return np.frombuffer(rng.bytes(spec.num_bytes), spec.dtype).reshape(spec.shape)
