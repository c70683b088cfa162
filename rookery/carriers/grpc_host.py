"""A host's end of the network link: dials the head and exchanges frames with it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rookery.carriers import tls as certificates
from rookery.carriers.grpc import (
    AUTHORIZATION,
    CONTROL,
    CONTROL_SECS,
    CUT_SECS,
    EXCHANGE,
    SESSION,
    STATES,
    Limits,
    said,
)
from rookery.carriers.pump import Pump
from rookery.carriers.wire import VERSION, Reader, WireError, packets, parsed
from rookery.core.address import is_loopback, parse_address, write_address
from rookery.core.errors import UserError
from rookery.core.hosts import (
    Assignment,
    HostStatus,
    Orders,
    Probe,
    Refused,
    Registration,
    Unreachable,
)

import grpc  # isort: skip  (after carriers.grpc, which says what to do where it is missing)
from rookery.carriers import wire_pb2 as pb  # isort: skip


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
        self._metadata = ((AUTHORIZATION, f"Bearer {token}"),)
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
        if found.state >= len(STATES):
            raise Refused(f"the head at {self.address} gives orders that are not known here")
        return Orders(STATES[found.state], reason=found.reason)

    def leave(self, session: str, reason: str) -> None:
        """Go; its places are free at once."""
        request = pb.LeaveRequest(version=VERSION, session=session, reason=reason)
        self._call("Leave", request, pb.LeaveReply())

    def exchange(self, session: str, pump: Pump) -> HostExchange:
        """Exchange the frames of ``pump`` from now on, by threads; what the head keeps for this
        host, such as the state of its actors, is there when this returns."""
        method = self._channel.stream_stream(f"/{EXCHANGE}/Exchange")
        metadata = (*self._metadata, (SESSION, session))
        exchange = HostExchange(pump, lambda sent: method(sent, metadata=metadata), self._explained)
        exchange.await_state(self.timeout_secs)
        return exchange

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _call(self, name: str, request: Any, reply: Any, timeout_secs: float | None = None) -> Any:
        method = self._channel.unary_unary(f"/{CONTROL}/{name}")
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
        codes, code, text = grpc.StatusCode, error.code(), said(error.details() or "")
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
