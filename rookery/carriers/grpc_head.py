"""The head's end of the network link: listens for hosts and exchanges frames with them.

It holds no state of a run: a :class:`Desk` says who may take part, and a
:class:`~rookery.carriers.pump.Pump` has the frames. What a peer sends is checked before anything
else sees it, and whatever is wrong with it ends that call with a status.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

import rookery
from rookery.carriers.grpc import (
    AUTHORIZATION,
    CONTROL,
    CONTROL_SECS,
    CUT_SECS,
    EXCHANGE,
    SESSION,
    Limits,
    said,
)
from rookery.carriers.pump import Pump
from rookery.carriers.tls import Tls
from rookery.carriers.tokens import same_token
from rookery.carriers.wire import (
    VERSION,
    OtherVersionError,
    Reader,
    WireError,
    pack,
    packets,
    parsed,
)
from rookery.core.address import is_loopback, parse_address, write_address
from rookery.core.errors import UserError
from rookery.core.hosts import Assignment, HostStatus, Orders, Refused, Registration

import grpc  # isort: skip  (after carriers.grpc, which says what to do where it is missing)
from rookery.carriers import wire_pb2 as pb  # isort: skip

_LOG = logging.getLogger(__name__)

CONTROL_BYTES = 1 << 16
CALLS_A_CONNECTION = 100
_LOST = "the connection was lost"
T = TypeVar("T")


class Desk(Protocol):
    """Who decides at the head. Each is called by a thread of its own, at most one a call."""

    def register(self, registration: Registration) -> Assignment:
        """What the host is to run; :class:`Refused` if it may not."""
        ...

    def heartbeat(self, session: str, status: HostStatus) -> Orders:
        """The host lives, and asks what to do; :class:`Refused` if the session is over."""
        ...

    def connect(self, session: str) -> Pump:
        """New relays for the exchange that the host begins; :class:`Refused` if it may not."""
        ...

    def disconnected(self, session: str) -> None:
        """The exchange has ended; nothing touches its relays any more."""
        ...

    def leave(self, session: str, reason: str) -> None:
        """The host goes."""
        ...


class HeadServer:
    """Listens for hosts::

        server = HeadServer("0.0.0.0:4700", token=token, tls=tls, desk=desk)
        ...
        server.stop(grace_secs)

    ``port`` is the one it listens at, chosen by the system where 0 was given.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str,
        tls: Tls | None,
        desk: Desk,
        limits: Limits | None = None,
        say: Callable[[str], None] = _LOG.warning,
    ) -> None:
        """``say`` is told, in one line at a time, of peers that were refused."""
        host, port = parse_address(address)
        if tls is None and not is_loopback(host):
            raise UserError(f"{address} can be reached from other machines, so it needs TLS")
        self.desk, self.limits = desk, limits or Limits()
        self.refusals = Refusals(say)
        self._served: dict[str, _Served] = {}
        self._lock = threading.Lock()
        calls = self.limits.hosts + self.limits.control_calls
        self._server = grpc.server(
            ThreadPoolExecutor(calls, "grpc"),
            handlers=[_handlers(self)],
            interceptors=[_guard(token, self.refusals)],
            options=[
                *self.limits.options(),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", CALLS_A_CONNECTION),
                ("grpc.max_allowed_incoming_connections", self.limits.connections),
                ("grpc.server_handshake_timeout_ms", int(self.limits.handshake_secs * 1000)),
                ("grpc.max_connection_idle_ms", int(self.limits.idle_secs * 1000)),
                # Hosts may ask as often as they like whether the head lives.
                ("grpc.http2.min_ping_interval_without_data_ms", 100),
            ],
            maximum_concurrent_rpcs=calls,
        )
        try:
            self.port = _listen(self._server, write_address(host, port), tls)
        except RuntimeError as error:
            raise UserError(
                f"cannot listen at {address}: the port is in use, or the address is not of this "
                "machine; choose another"
            ) from error
        self._server.start()

    def stop(self, grace_secs: float = 2.0) -> None:
        """End all exchanges and calls; those that take longer are cut off."""
        for served in self._all():
            if served.pump is not None:
                served.pump.close("the head has stopped")
        self._server.stop(grace_secs).wait(grace_secs + CUT_SECS)
        self.refusals.tell_rest()

    def _all(self) -> list[_Served]:
        with self._lock:
            return list(self._served.values())

    # ---- control ---------------------------------------------------------------------------------

    def register(self, request: pb.RegisterRequest, peer: str) -> pb.Assignment:
        """A host would like to take part."""
        if request.rookery_version != rookery.__version__:
            raise Refused(
                f"{said(request.host, 64)} has Rookery {said(request.rookery_version, 32)} and "
                f"the head has {rookery.__version__}; install the same on both"
            )
        found = self.desk.register(
            Registration(
                host=said(request.host, 255),
                pid=request.pid,
                rookery_version=request.rookery_version,
                num_actors=request.num_actors,
                cores=request.cores,
                run=said(request.run, 255),
                identity=said(request.identity, 64),
                role=said(request.role, 64),
                address=peer,
            )
        )
        return pb.Assignment(
            version=VERSION,
            session=found.session,
            places=[pb.Place(place=place, life=life) for place, life in found.places],
            config=json.dumps(dict(found.config)),
            signature=json.dumps(dict(found.signature)),
            start_steps=found.start_steps,
            run=found.run,
            lease_secs=found.lease_secs,
            parts=found.parts,
            role=found.role,
            probe=None if found.probe is None else pb.Probe(**asdict(found.probe)),
        )

    def heartbeat(self, request: pb.HeartbeatRequest, _: str) -> pb.Orders:
        """A host lives, and asks what to do."""
        status = HostStatus(
            actors_alive=request.actors_alive,
            restarts=request.restarts,
            message=said(request.message),
            error=said(request.error),
        )
        orders = self.desk.heartbeat(request.session, status)
        return pb.Orders(version=VERSION, state=orders.state.upper(), reason=orders.reason)

    def leave(self, request: pb.LeaveRequest, _: str) -> pb.LeaveReply:
        """A host goes."""
        self.desk.leave(request.session, said(request.reason))
        return pb.LeaveReply(version=VERSION)

    # ---- the exchange ----------------------------------------------------------------------------

    def exchange(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Frames of a host, both ways; this thread sends, another receives."""
        status, served = _outcome(lambda: self._connect(context))
        if served is None:
            context.abort(*status)
            return iter(())
        threading.Thread(
            target=served.receive, args=(requests,), name="exchange", daemon=True
        ).start()
        return served.send()

    def _connect(self, context: Any) -> _Served:
        session = str(dict(context.invocation_metadata()).get(SESSION, ""))
        with self._lock:
            if session in self._served:
                raise Refused(f"session {said(session, 64)} has an exchange", again=True)
            if len(self._served) >= self.limits.hosts:
                raise Refused(
                    f"the head has {self.limits.hosts} hosts, which is all it takes", again=True
                )
            served = self._served[session] = _Served(context, lambda: self._disconnected(session))
        try:
            served.join(self.desk.connect(session))
        except BaseException:
            with self._lock:
                del self._served[session]
            raise
        return served

    def _disconnected(self, session: str) -> None:
        try:
            self.desk.disconnected(session)
        finally:
            with self._lock:
                del self._served[session]


class _Served:
    """One host's exchange at the head."""

    def __init__(self, context: Any, ended: Callable[[], None]) -> None:
        self.context, self.ended = context, ended
        self.status: tuple[Any, str] | None = None
        """Of the call, if the peer has ended it or an error has."""
        self.pump: Pump | None = None
        self._cut = threading.Timer(CUT_SECS, context.cancel)
        self._cut.daemon = True
        self._cutting = threading.Lock()

    def join(self, pump: Pump) -> None:
        """Carry the frames of ``pump``."""
        self.pump = pump
        pump.on_close = self._closed
        if pump.closed:
            self._closed()

    def _closed(self) -> None:
        """Who waits for the peer meanwhile cannot be woken otherwise."""
        if self._cutting.acquire(blocking=False):  # once, whoever closes it
            self._cut.start()

    def send(self) -> Iterator[bytes]:
        """The state of the cells, an empty packet, and then whatever comes."""
        pump = self.pump
        assert pump is not None
        try:
            yield from packets(pump.take(0.0))
            yield pack(())
            while not pump.closed:
                yield from packets(pump.take(CUT_SECS))
        except Exception as error:
            self.status = _status(error)
            pump.close(self.status[1])
        finally:
            self._cut.cancel()
        code, text = self.status or (grpc.StatusCode.ABORTED, pump.reason)
        if code is not grpc.StatusCode.OK:
            self.context.abort(code, text)

    def receive(self, requests: Iterator[bytes]) -> None:
        """Until the host has ended the exchange, it breaks, or what comes is wrong."""
        assert self.pump is not None
        pump, reader = self.pump, Reader(self.pump.receives)
        try:
            for data in requests:
                pump.accept(reader.frames(data))
            ending = (grpc.StatusCode.OK, "the host has ended it")
        except Exception as error:
            ending = _status(error)
        if self.status is None:
            self.status = ending
        pump.close(ending[1])
        pump.on_close = lambda: (
            None
        )  # or the call, and its stream, lived until garbage is collected
        self.ended()


def _outcome(work: Callable[[], T]) -> tuple[tuple[Any, str], T | None]:
    """What ``work`` gives, or the status that says why it gives nothing."""
    try:
        return (grpc.StatusCode.OK, ""), work()
    except Exception as error:
        return _status(error), None


def _status(error: Exception) -> tuple[Any, str]:
    """How a call ends that failed so."""
    codes = grpc.StatusCode
    if isinstance(error, Refused):
        return codes.ABORTED if error.again else codes.FAILED_PRECONDITION, said(str(error))
    if isinstance(error, OtherVersionError):
        return codes.FAILED_PRECONDITION, said(str(error))
    if isinstance(error, WireError):
        return codes.INVALID_ARGUMENT, said(str(error))
    if isinstance(error, grpc.RpcError):  # of the peer, which is gone or has no time left
        return codes.CANCELLED, _LOST
    _LOG.error("the head failed at a call of a host", exc_info=error)
    return codes.INTERNAL, said(f"the head failed: {type(error).__name__}: {error}")


def _handlers(server: HeadServer) -> Any:
    """What is called by which name."""
    control = {
        "Register": (pb.RegisterRequest, server.register),
        "Heartbeat": (pb.HeartbeatRequest, server.heartbeat),
        "Leave": (pb.LeaveRequest, server.leave),
    }
    handlers = {
        f"/{CONTROL}/{name}": grpc.stream_unary_rpc_method_handler(
            functools.partial(_control, kind, answer)
        )
        for name, (kind, answer) in control.items()
    }
    exchange = grpc.stream_stream_rpc_method_handler(server.exchange)
    handlers[f"/{EXCHANGE}/Exchange"] = exchange

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return handlers.get(details.method)

    return Handlers()


def _control(kind: Any, answer: Any, requests: Iterator[bytes], context: Any) -> bytes:
    """One control call: a stream of one message, so that who never sends it holds no thread for
    longer than its deadline."""

    def work() -> bytes:
        if not context.time_remaining() <= CONTROL_SECS:
            raise WireError(f"a call without a deadline within {CONTROL_SECS:g} s")
        data = next(requests, None)
        if data is None:
            raise WireError("a call without a message")
        if len(data) > CONTROL_BYTES:
            raise WireError(f"{len(data)} bytes, more than {CONTROL_BYTES}")
        reply: bytes = answer(parsed(kind(), data), _address_of(context)).SerializeToString()
        return reply

    status, reply = _outcome(work)
    if reply is None:
        context.abort(*status)
    return reply or b""


def _listen(server: Any, address: str, tls: Tls | None) -> int:
    if tls is None:
        return int(server.add_insecure_port(address))
    credentials = grpc.ssl_server_credentials([(tls.key, tls.certificate)])
    return int(server.add_secure_port(address, credentials))


# ---- who has no token ----------------------------------------------------------------------------


class Refusals:
    """Counts attempts without the token, and says so, not too often."""

    EVERY_SECS = 10.0
    MOST_PEERS = 64
    """Known by their addresses; all others together."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.total = say, 0
        self._lock = threading.Lock()
        self._untold: dict[str, int] = {}
        self._told: dict[str, float] = {}

    def count(self, peer: str) -> None:
        """One more, of ``peer``."""
        moment = time.monotonic()
        with self._lock:
            if peer not in self._untold and len(self._untold) >= self.MOST_PEERS:
                peer = "other addresses"
            self.total += 1
            self._untold[peer] = self._untold.get(peer, 0) + 1
            due = moment - self._told.get(peer, -self.EVERY_SECS) >= self.EVERY_SECS
            if due:
                self._told[peer] = moment
                self._tell(peer)

    def tell_rest(self) -> None:
        """What was not told yet."""
        with self._lock:
            for peer in self._untold:
                self._tell(peer)

    def _tell(self, peer: str) -> None:
        num, self._untold[peer] = self._untold[peer], 0
        if num:
            attempts = "1 attempt" if num == 1 else f"{num} attempts"
            self.say(f"refused {attempts} from {peer}: no token, or another one")


def _guard(token: str, refusals: Refusals) -> Any:
    """Lets nobody in without the token; nothing else of their calls is read."""
    wanted = f"Bearer {token}"

    def refuse(_: Iterator[bytes], context: Any) -> Iterator[bytes]:
        refusals.count(_address_of(context))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token, or another one")
        return iter(())

    refusing = grpc.stream_stream_rpc_method_handler(refuse)

    class Guard(grpc.ServerInterceptor):  # type: ignore[misc]
        def intercept_service(self, continuation: Any, details: Any) -> Any:
            given = dict(details.invocation_metadata).get(AUTHORIZATION, "")
            text = given if isinstance(given, str) else ""
            return continuation(details) if same_token(text, wanted) else refusing

    return Guard()


def _address_of(context: Any) -> str:
    """``10.0.0.3`` of ``ipv4:10.0.0.3:5123``, ``::1`` of ``ipv6:%5B::1%5D:5123``."""
    peer = str(context.peer()).replace("%5B", "").replace("%5D", "")
    return peer.partition(":")[2].rpartition(":")[0] or peer
