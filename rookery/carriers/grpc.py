"""The network link between the head of a run and its hosts: gRPC, as ``wire.proto`` describes it.

The head serves, hosts dial. Both ends here hold no state of a run: a :class:`Desk` says who may
take part, and a :class:`~rookery.carriers.pump.Pump` has the frames. What a peer sends is checked
before anything else sees it, and whatever is wrong with it ends that call with a status.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import rookery
from rookery.carriers import tls as certificates
from rookery.carriers.pump import Pump
from rookery.carriers.tls import Tls
from rookery.carriers.tokens import same_token
from rookery.core.address import is_loopback, parse_address, write_address
from rookery.core.errors import UserError
from rookery.core.hosts import (
    Assignment,
    HostStatus,
    Orders,
    Probe,
    Refused,
    Registration,
    State,
    Unreachable,
    missing_extra,
)

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # or every bad handshake is a line of its own
try:
    import grpc

    from rookery.carriers import wire_pb2 as pb
    from rookery.carriers.wire import (
        VERSION,
        OtherVersionError,
        Reader,
        WireError,
        pack,
        packets,
        parsed,
    )
except ImportError as error:
    raise missing_extra(error) from error

_LOG = logging.getLogger(__name__)
_CONTROL, _EXCHANGE = "rookery.wire.Control", "rookery.wire.Exchange"
_SESSION, _AUTHORIZATION = "rookery-session", "authorization"
CONTROL_SECS = 60.0
"""The longest deadline of a control call."""
CONTROL_BYTES = 1 << 16
CALLS_A_CONNECTION = 100
CUT_SECS = 5.0
"""A peer that takes nothing for so long, when an exchange is to end, is cut off."""
_LOST = "the connection was lost"
_MOST_SAID = 500
T = TypeVar("T")
_STATES: tuple[State, ...] = ("run", "wait", "stop", "over")
"""In the order of ``Orders.State``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer may take, and how long it may be silent."""

    hosts: int = 64
    """Exchanges at once."""
    connections: int = 256
    control_calls: int = 16
    """At once."""
    message_bytes: int = 64 << 20
    """Of one message; see :func:`rookery.carriers.wire.most_bytes`."""
    ping_secs: float = 5.0
    """A connection that was silent for so long is asked whether it lives,"""
    ping_timeout_secs: float = 5.0
    """and is cut if it does not answer in this time."""
    handshake_secs: float = 10.0
    idle_secs: float = 10.0
    """A connection without any call for so long is closed: it may be of someone without a token."""

    def options(self) -> list[tuple[str, Any]]:
        """As gRPC calls them, for either side."""
        return [
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.max_send_message_length", self.message_bytes),
            ("grpc.keepalive_time_ms", int(self.ping_secs * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.ping_timeout_secs * 1000)),
            ("grpc.http2.ping_timeout_ms", int(self.ping_timeout_secs * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]


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


# ---- the head ------------------------------------------------------------------------------------


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
                f"{_said(request.host, 64)} has Rookery {_said(request.rookery_version, 32)} and "
                f"the head has {rookery.__version__}; install the same on both"
            )
        found = self.desk.register(
            Registration(
                host=_said(request.host, 255),
                pid=request.pid,
                rookery_version=request.rookery_version,
                num_actors=request.num_actors,
                cores=request.cores,
                run=_said(request.run, 255),
                identity=_said(request.identity, 64),
                role=_said(request.role, 64),
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
            message=_said(request.message),
            error=_said(request.error),
        )
        orders = self.desk.heartbeat(request.session, status)
        return pb.Orders(version=VERSION, state=orders.state.upper(), reason=orders.reason)

    def leave(self, request: pb.LeaveRequest, _: str) -> pb.LeaveReply:
        """A host goes."""
        self.desk.leave(request.session, _said(request.reason))
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
        session = str(dict(context.invocation_metadata()).get(_SESSION, ""))
        with self._lock:
            if session in self._served:
                raise Refused(f"session {_said(session, 64)} has an exchange", again=True)
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
        return codes.ABORTED if error.again else codes.FAILED_PRECONDITION, _said(str(error))
    if isinstance(error, OtherVersionError):
        return codes.FAILED_PRECONDITION, _said(str(error))
    if isinstance(error, WireError):
        return codes.INVALID_ARGUMENT, _said(str(error))
    if isinstance(error, grpc.RpcError):  # of the peer, which is gone or has no time left
        return codes.CANCELLED, _LOST
    _LOG.error("the head failed at a call of a host", exc_info=error)
    return codes.INTERNAL, _said(f"the head failed: {type(error).__name__}: {error}")


def _said(text: str, most: int = _MOST_SAID) -> str:
    """A peer's words as one line that does nothing to a terminal."""
    return "".join(char if char.isprintable() else " " for char in text[:most])


def _handlers(server: HeadServer) -> Any:
    """What is called by which name."""
    control = {
        "Register": (pb.RegisterRequest, server.register),
        "Heartbeat": (pb.HeartbeatRequest, server.heartbeat),
        "Leave": (pb.LeaveRequest, server.leave),
    }
    handlers = {
        f"/{_CONTROL}/{name}": grpc.stream_unary_rpc_method_handler(
            functools.partial(_control, kind, answer)
        )
        for name, (kind, answer) in control.items()
    }
    exchange = grpc.stream_stream_rpc_method_handler(server.exchange)
    handlers[f"/{_EXCHANGE}/Exchange"] = exchange

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
            given = dict(details.invocation_metadata).get(_AUTHORIZATION, "")
            text = given if isinstance(given, str) else ""
            return continuation(details) if same_token(text, wanted) else refusing

    return Guard()


def _address_of(context: Any) -> str:
    """``10.0.0.3`` of ``ipv4:10.0.0.3:5123``, ``::1`` of ``ipv6:%5B::1%5D:5123``."""
    peer = str(context.peer()).replace("%5B", "").replace("%5D", "")
    return peer.partition(":")[2].rpartition(":")[0] or peer


# ---- a host --------------------------------------------------------------------------------------


class HostClient:
    """A host's way to the head::

        client = HostClient("10.0.0.1:4700", token=token, fingerprint=fingerprint)
        assignment = client.register(Registration(...))
        exchange = client.exchange(assignment.session, pump)
        while not exchange.broken.is_set():
            orders = client.heartbeat(assignment.session, status)
        client.leave(assignment.session, "stopped by the user")
        client.close()

    Raises :class:`Refused` where the head refuses, and :class:`Unreachable` where it does not
    answer; either is one line.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str,
        fingerprint: str | None = None,
        authority: Path | None = None,
        limits: Limits | None = None,
        timeout_secs: float = 10.0,
    ) -> None:
        """``fingerprint`` of the head's certificate, or a PEM file of the ``authority`` that has
        signed it; without either only this machine is trusted."""
        host, port = parse_address(address, "head")
        self.address, self.timeout_secs = write_address(host, port), timeout_secs
        self._metadata = ((_AUTHORIZATION, f"Bearer {token}"),)
        options = [
            *(limits or Limits()).options(),
            ("grpc.enable_http_proxy", 0),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        if fingerprint is not None:
            known = certificates.pinned(host, port, fingerprint, timeout_secs)
            options.append(("grpc.ssl_target_name_override", known.name))
            credentials = grpc.ssl_channel_credentials(known.certificate)
        elif authority is not None:
            credentials = grpc.ssl_channel_credentials(_read(authority))
        elif not is_loopback(host):
            raise UserError(
                f"{address} is another machine: give the fingerprint that the head prints, or a "
                "file of the authority that signed its certificate"
            )
        else:
            self._channel = grpc.insecure_channel(self.address, options)
            return
        self._channel = grpc.secure_channel(self.address, credentials, options)

    def register(self, registration: Registration) -> Assignment:
        """Ask to take part."""
        request = pb.RegisterRequest(
            version=VERSION,
            rookery_version=registration.rookery_version,
            host=registration.host,
            pid=registration.pid,
            num_actors=registration.num_actors,
            cores=registration.cores,
            run=registration.run,
            identity=registration.identity,
            role=registration.role,
        )
        # What it begins with may be large.
        found = self._call("Register", request, pb.Assignment(), timeout_secs=CONTROL_SECS / 2)
        return Assignment(
            session=found.session,
            places=[(place.place, place.life) for place in found.places],
            config=json.loads(found.config),
            signature=json.loads(found.signature),
            start_steps=found.start_steps,
            run=found.run,
            lease_secs=found.lease_secs,
            parts=found.parts,
            role=found.role,
            probe=_probe(found.probe) if found.HasField("probe") else None,
        )

    def heartbeat(self, session: str, status: HostStatus) -> Orders:
        """Say how this host does, and hear what to do."""
        request = pb.HeartbeatRequest(
            version=VERSION,
            session=session,
            actors_alive=status.actors_alive,
            restarts=status.restarts,
            message=status.message,
            error=status.error,
        )
        found = self._call("Heartbeat", request, pb.Orders())
        if found.state >= len(_STATES):
            raise Refused(f"the head at {self.address} gives orders that are not known here")
        return Orders(_STATES[found.state], reason=found.reason)

    def leave(self, session: str, reason: str) -> None:
        """Go; its places are free at once."""
        request = pb.LeaveRequest(version=VERSION, session=session, reason=reason)
        self._call("Leave", request, pb.LeaveReply())

    def exchange(self, session: str, pump: Pump) -> HostExchange:
        """Exchange the frames of ``pump`` from now on, by threads; what the head keeps for this
        host, such as the state of its actors, is there when this returns."""
        method = self._channel.stream_stream(f"/{_EXCHANGE}/Exchange")
        metadata = (*self._metadata, (_SESSION, session))
        exchange = HostExchange(pump, lambda sent: method(sent, metadata=metadata), self._explained)
        exchange.await_state(self.timeout_secs)
        return exchange

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _call(self, name: str, request: Any, reply: Any, timeout_secs: float | None = None) -> Any:
        method = self._channel.unary_unary(f"/{_CONTROL}/{name}")
        data = request.SerializeToString()
        try:
            secs = self.timeout_secs if timeout_secs is None else timeout_secs
            return parsed(reply, method(data, secs, metadata=self._metadata))
        except grpc.RpcError as error:
            raise self._explained(error) from error
        except WireError as error:
            raise Refused(f"the head at {self.address} answered with {error}") from error

    def _explained(self, error: Any) -> UserError:
        """What a call's status means to the user."""
        codes, code, text = grpc.StatusCode, error.code(), _said(error.details() or "")
        head = f"the head at {self.address}"
        if code is codes.UNAUTHENTICATED:
            return Refused(f"{head} refuses the token; take the one it was started with")
        if code in (codes.FAILED_PRECONDITION, codes.INVALID_ARGUMENT):
            return Refused(f"{head} refuses: {text}")
        if code is codes.ABORTED:
            return Refused(f"{head}: {text}", again=True)
        if code is codes.RESOURCE_EXHAUSTED:  # whoever has caused it, it says nothing of this host
            return Unreachable(f"{head} has too much to do: {text}")
        if code is codes.UNIMPLEMENTED:
            return Refused(f"{self.address} is not the head of a Rookery run")
        return Unreachable(f"{head} does not answer: {text or code.name}")


class HostExchange:
    """A running exchange at a host."""

    def __init__(
        self,
        pump: Pump,
        start: Callable[[Iterator[bytes]], Any],
        explained: Callable[[Any], UserError],
    ) -> None:
        self.pump, self._explained = pump, explained
        self.broken = threading.Event()
        """Set when it has ended, for whatever :attr:`error`."""
        self.error: UserError | None = None
        """Why it ended; None while it runs, and when this side has ended it."""
        self._has_state = threading.Event()
        self._sent_all = threading.Event()
        self._call: Any = None
        self._call = start(self._send())
        if self.broken.is_set():
            self._call.cancel()
        threading.Thread(target=self._receive, name="exchange", daemon=True).start()

    @property
    def reason(self) -> str:
        """Why it ended, in one line."""
        return str(self.error) if self.error is not None else self.pump.reason

    def await_state(self, timeout_secs: float) -> None:
        """Until the head has sent what it keeps."""
        there = self._has_state.wait(timeout_secs)
        if self.broken.is_set() and self.error is not None:
            raise self.error
        if not there:
            self._end(Unreachable(f"the head did not begin the exchange in {timeout_secs:g} s"))
            raise Unreachable(self.reason)

    def close(self, timeout_secs: float = 5.0) -> None:
        """Send what is pending, and end it; nobody waits for the pump's wake-ups afterwards."""
        self.pump.finish()
        self.broken.wait(timeout_secs)
        self._end(None)
        self._sent_all.wait(timeout_secs)

    def _send(self) -> Iterator[bytes]:
        """Until the pump is closed; called by a thread of gRPC's."""
        try:
            while not self.pump.closed:
                yield from packets(self.pump.take(CUT_SECS))
        except Exception as error:
            self._end(Refused(f"cannot send: {type(error).__name__}: {error}"))
        finally:
            self._sent_all.set()

    def _receive(self) -> None:
        reader, ended = Reader(self.pump.receives), None
        try:
            for data in self._call:
                frames = reader.frames(data)
                self.pump.accept(frames)
                if not frames:
                    self._has_state.set()
        except grpc.RpcError as error:
            ended = self._explained(error)
        except Exception as error:
            ended = Refused(f"the head sent {error}")
        self._end(ended)

    def _end(self, error: UserError | None) -> None:
        """The first that ends it says why."""
        if not self.pump.closed:
            self.error = error
            self.pump.close(str(error or "the head has ended it"))
        self.broken.set()
        if self._call is not None:
            self._call.cancel()
        self._has_state.set()


def _probe(told: pb.Probe) -> Probe:
    return Probe(told.directory, told.name, told.content)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the authority's certificate {path}: {error}") from error
