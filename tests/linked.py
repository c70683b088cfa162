"""A head and a host in one process with a real socket between them, and what may come between."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import rookery
from rookery.carriers.grpc import Limits
from rookery.carriers.grpc_head import HeadServer
from rookery.carriers.grpc_host import HostClient, HostExchange
from rookery.carriers.pump import Pump
from rookery.carriers.tls import Tls
from rookery.carriers.wire import Frames
from rookery.core.hosts import Assignment, HostStatus, Orders, Refused, Registration
from rookery.core.ports import Relay

TOKEN = "a-token-that-only-tests-know"
SECS = 30.0
"""More than anything here takes, on however busy a machine."""
REGISTRATION = Registration(
    host="node-b", pid=7, rookery_version=rookery.__version__, num_actors=3, cores=4, run="run-1"
)
ASSIGNMENT = Assignment(
    session="s1",
    places=[(4, 0), (5, 2)],
    config={"env": {"id": "CartPole-v1"}, "lr": 1e-3},
    signature={"obs": [4]},
    start_steps=12_345_678_901,
    run="run-1",
    lease_secs=12.5,
    parts=bytes(range(256)),
)


def eventually(there: Callable[[], Any], secs: float = SECS) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + secs
    while not there():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.002)


class CountingPump(Pump):
    """Knows how many frames have passed, and how often it looked for some."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sent = self.got = self.looks = 0

    def _pending(self) -> Frames:
        found = super()._pending()
        self.sent += len(found)
        self.looks += not found
        return found

    def accept(self, frames: Frames) -> None:
        super().accept(frames)
        self.got += len(frames)

    def still(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing passes meanwhile."""
        return self._lock

    def look(self) -> None:
        """Look again now, and find nothing."""
        before = self.looks
        while self.looks == before and not self.closed:
            self._own.notify()
            time.sleep(0.0005)


class Office:
    """A :class:`~rookery.carriers.grpc_head.Desk` that writes down what it was asked."""

    def __init__(self) -> None:
        self.registered: list[Registration] = []
        self.statuses: list[tuple[str, HostStatus]] = []
        self.gone: list[str] = []
        self.left: list[tuple[str, str]] = []
        self.orders = Orders()
        self.pumps: dict[str, Callable[[], Pump]] = {}
        """By session, each made for one exchange."""

    def register(self, registration: Registration) -> Assignment:
        if registration.num_actors > 100:
            raise Refused("there are places for 100 actors")
        self.registered.append(registration)
        return ASSIGNMENT

    def heartbeat(self, session: str, status: HostStatus) -> Orders:
        self._know(session)
        self.statuses.append((session, status))
        return self.orders

    def connect(self, session: str) -> Pump:
        self._know(session)
        return self.pumps[session]()

    def disconnected(self, session: str) -> None:
        self.gone.append(session)

    def leave(self, session: str, reason: str) -> None:
        self._know(session)
        self.left.append((session, reason))

    def _know(self, session: str) -> None:
        if session not in self.pumps:
            raise Refused("this session is over", again=True)


class Head:
    """A server and its clients; all are closed with it."""

    def __init__(
        self, tls: Tls | None = None, limits: Limits | None = None, address: str = "127.0.0.1:0"
    ) -> None:
        self.office, self.said, self.tls = Office(), list[str](), tls
        self.server = HeadServer(
            address, token=TOKEN, tls=tls, desk=self.office, limits=limits, say=self.said.append
        )
        self.limits = limits
        self.address = f"127.0.0.1:{self.server.port}"
        self._closing = contextlib.ExitStack()

    def client(self, **given: Any) -> HostClient:
        fingerprint = self.tls.fingerprint if self.tls is not None else None
        given = {"token": TOKEN, "fingerprint": fingerprint, "limits": self.limits} | given
        client = HostClient(given.pop("address", self.address), **given)
        self._closing.callback(client.close)
        return client

    def __enter__(self) -> Head:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
        self.server.stop(0.5)


class Link:
    """Pairs of relays (the host's, the head's, whether it is a cell), joined by a real exchange."""

    def __init__(self, head: Head, pairs: Sequence[tuple[Relay, Relay, bool]], name: str) -> None:
        self.host, self.server = CountingPump(), CountingPump()
        for number, (there, here, first) in enumerate(pairs):
            self.host.add(number, there, first=first)
            self.server.add(number, here, first=first)
        head.office.pumps[name] = lambda: self.server
        self.exchange: HostExchange = head.client().exchange(name, self.host)

    def settle(self) -> None:
        """Until nothing moves any more."""
        one, other = self.host, self.server
        while True:
            before = one.sent, one.got, other.sent, other.got
            one.look()
            other.look()
            after = one.sent, one.got, other.sent, other.got
            assert not self.exchange.broken.is_set(), self.exchange.reason
            if before == after and (one.sent, one.got) == (other.got, other.sent):
                return

    def close(self) -> None:
        self.exchange.close(SECS)


class Cable:
    """A TCP proxy whose connections can be cut without anybody being told."""

    def __init__(self, port: int) -> None:
        self.target, self.cut = port, threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._open: list[socket.socket] = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._server.accept()
                other = socket.create_connection(("127.0.0.1", self.target))
                self._open += [one, other]
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.cut.is_set():
                    target.sendall(data)
            if not self.cut.is_set():
                target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._open:
            each.close()


@contextlib.contextmanager
def cable(port: int) -> Iterator[Cable]:
    found = Cable(port)
    yield found
    found.close()
