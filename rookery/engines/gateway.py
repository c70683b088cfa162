"""The gateway: a process at the head that stands for what hosts that join run.

It listens, gives hosts places among the replicas that are left to them, and pumps frames between
the network and the memory that all processes here share. Nobody else knows anything of it, and
neither Python's lock nor a crash of the network side reaches them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.carriers.pump import Pump
from rookery.carriers.tls import Tls, from_files, self_signed
from rookery.carriers.tokens import given_token, token_of_run
from rookery.carriers.wire import OVERHEAD_BYTES, most_bytes
from rookery.core.address import is_loopback, parse_address, write_address
from rookery.core.errors import UserError
from rookery.core.hosts import Assignment, HostStatus, Orders, Probe, Refused, Registration
from rookery.engines.joined import relays_at_head
from rookery.engines.process import Inbox, SharedProgram, heartbeats_of
from rookery.programs.graph import Node
from rookery.programs.plan import Plan
from rookery.runs.checkpoint_files import LEARNER_PARTS
from rookery.runs.config import RunConfig
from rookery.runs.find import load_checkpoint
from rookery.runs.head_address import HeadAddress, remove_head_address, write_head_address
from rookery.runs.packed_parts import pack_parts
from rookery.runs.shared_probe import probe_in
from rookery.runs.start import starting_weights
from rookery.transport.control import Control
from rookery.transport.vitals import VitalsWriter

if TYPE_CHECKING:
    from rookery.carriers.grpc_head import HeadServer

_LOG = logging.getLogger(__name__)

LOOK_SECS = 0.2
MESSAGE_BYTES = 64 << 20
"""Hosts may send messages of at least so many bytes."""
FAREWELL_SECS = 3.0
"""How long hosts have to hear that the run is over."""
_LIVES = 1000
"""Lives that a host may give one of its actors before the next host has the place."""


@dataclass(slots=True)
class Session:
    """One host's part of the run, from its registration until it leaves."""

    name: str
    registration: Registration
    node: Node
    places: list[int]
    heard: float
    pump: Pump | None = None
    status: HostStatus = field(default_factory=lambda: HostStatus(actors_alive=0))
    told_over: bool = False

    @property
    def host(self) -> str:
        """As people know it."""
        return self.registration.host


class Reception:
    """Gives places to hosts and takes them back: the :class:`~rookery.carriers.grpc_head.Desk`.

    Its methods are called by the threads of the server.
    """

    def __init__(
        self,
        plan: Plan,
        shared: SharedProgram,
        control: Control,
        *,
        run: str,
        start_steps: int,
        epoch: int,
        parts: bytes,
        probe: Probe,
    ) -> None:
        """``epoch`` is higher at each start of a gateway of this run, so that no life comes twice;
        ``parts`` is what joined roles begin with that learn, ``probe`` for those that need the run
        directory."""
        self.plan, self.shared, self.control = plan, shared, control
        self.wired = shared.wired
        self.run, self.start_steps, self.epoch = run, start_steps, epoch
        self.parts, self.probe = parts, probe
        self.program = self.wired.program
        self.open = {node.name: node for node in self.program.open_to_hosts}
        self.free = {name: list(node.places) for name, node in self.open.items()}
        self.sessions: dict[str, Session] = {}
        self.order = Orders("run")
        self._assigned = 0
        self._lock = threading.RLock()
        for node in self.open.values():  # of a gateway before this one
            self._forget(node, list(node.places))

    # ---- what hosts ask --------------------------------------------------------------------------

    def register(self, registration: Registration) -> Assignment:
        """Places for what a host runs."""
        with self._lock:
            if self.order.state == "over":  # a host whose connection broke just now
                return self._assignment(None, 0)
            node, num = self._check(registration), registration.num_actors
            free = self.free[node.name]
            places, self.free[node.name] = free[:num], free[num:]
            name = secrets.token_hex(8)
            session = Session(name, registration, node, places, time.monotonic())
            self.sessions[name] = session
            self._assigned += 1
            life = (self.epoch * 1000 + self._assigned) * _LIVES
        self.control.send("notice", text=f"host {session.host} joined {self._as_what(session)}")
        self._tell_room()
        return self._assignment(session, life)

    def _assignment(self, session: Session | None, life: int) -> Assignment:
        """What a host is to run; without a session, nothing: the run is over."""
        config, node = self.plan.config, session.node if session is not None else None
        return Assignment(
            session=session.name if session is not None else "",
            places=[(place, life) for place in session.places] if session is not None else [],
            role=node.name if node is not None else "",
            probe=self.probe if node is not None and node.reads_run else None,
            config=config.to_tree(),
            signature=self.plan.signature.to_json(),
            start_steps=self.start_steps,
            run=self.run,
            lease_secs=config.hosts.lease_secs,
            parts=self.parts if node is not None and node.keeps_session else b"",
        )

    def _as_what(self, session: Session) -> str:
        """``with 8 actors (2 to 9)``, or as the only one of its role."""
        if not session.node.has_envs:
            return f"as {session.node.name}"
        return f"with {len(session.places)} actors {_range(session.places)}"

    def _tell_room(self) -> None:
        """How many are missing without whom nobody goes on."""
        free = (
            len(places)
            for name, places in self.free.items()
            if self.open[name].on_death == "rewind"
        )
        self.control.send("room", places=sum(free))

    def _check(self, registration: Registration) -> Node:
        """The node of what a host offers to run; refuses who cannot take part."""
        if self.order.state != "run":
            raise Refused(self.order.reason, again=True)
        if registration.run and registration.run != self.run:
            raise Refused(f"this is the run {self.run}, not {registration.run}")
        node = self._offered(registration.role)
        self._drop_earlier(registration)
        room, free, num = node.left_to_hosts, len(self.free[node.name]), registration.num_actors
        what = "actors" if node.has_envs else node.name
        if num < 1:
            raise Refused(f"a host needs at least one actor, got {num}")
        if num > room:
            more = ", or start the head with more --places" if node.has_envs else ""
            raise Refused(
                f"{num} {what} are more than the {room} places for {what} of other hosts; join "
                f"with fewer{more}"
            )
        if num > free:
            raise Refused(f"{num} {what}, and {free} of {room} places are free", again=True)
        return node

    def _offered(self, role: str) -> Node:
        """The node that a host calls ``role``, if the head leaves any of it to hosts."""
        name = role or self.program.acting.name
        if name not in self.open:
            raise Refused(
                f"'{name}' is no role that the head leaves to hosts; it leaves "
                f"{', '.join(self.open)} (--role)"
            )
        return self.open[name]

    def _drop_earlier(self, registration: Registration) -> None:
        """A host that comes back has left, whatever its lease says."""
        for session in list(self.sessions.values()):
            if session.registration.identity == registration.identity:
                self._drop(session, "it begins anew")

    def heartbeat(self, session: str, status: HostStatus) -> Orders:
        """What a host is to do."""
        with self._lock:
            found = self._known(session)
            found.heard, found.status = time.monotonic(), status
            found.told_over = found.told_over or self.order.state != "run"
            if status.error:
                self._drop(found, status.error)
            return self.order

    def connect(self, session: str) -> Pump:
        """The frames of a host's actors."""
        with self._lock:
            found = self._known(session)
            if found.pump is not None:
                raise Refused("this session is connected already")
            wakeups = self.shared.wakeups[found.node.name]
            found.pump = Pump([wakeups[place] for place in found.places])
            for carried in relays_at_head(self.wired, found.node, found.places):
                found.pump.add(
                    carried.number, carried.relay, first=carried.first, wakes=carried.wakes
                )
            return found.pump

    def disconnected(self, session: str) -> None:
        """The connection of a host has broken."""
        with self._lock:
            if session in self.sessions and self.order.state == "run":
                self._drop(self.sessions[session], "its connection broke")

    def leave(self, session: str, reason: str) -> None:
        """A host ends its part."""
        with self._lock:
            if session in self.sessions:
                self._drop(self.sessions[session], reason)

    def _known(self, session: str) -> Session:
        if session not in self.sessions:
            raise Refused("the head does not know this session (any more)", again=True)
        return self.sessions[session]

    def _drop(self, session: Session, why: str) -> None:
        """Free a host's places; what was on its way is lost, nothing else."""
        del self.sessions[session.name]
        name = session.node.name
        self.free[name] = sorted([*self.free[name], *session.places])
        if session.pump is not None:
            session.pump.close()
        self._forget(session.node, session.places)
        if self.order.state != "run":
            return
        text = f"host {session.host} left {self._as_what(session)}: {why}"
        self.control.send("notice", text=text)
        if session.node.on_death == "rewind":
            self.control.send("lost", text=text, host=f"host {session.host}")
        self._tell_room()

    def _forget(self, node: Node, places: list[int]) -> None:
        """Nobody is at these places."""
        self.wired.memory(heartbeats_of(self.program, node))["cells"][places] = 0.0

    # ---- what the gateway's loop asks ------------------------------------------------------------

    def drop_silent(self) -> None:
        """Free the places of hosts whose lease has run out."""
        with self._lock:
            limit = time.monotonic() - self.plan.config.hosts.lease_secs
            for session in list(self.sessions.values()):
                if session.heard < limit:
                    secs = self.plan.config.hosts.lease_secs
                    self._drop(session, f"nothing was heard of it for {secs:g} s")

    def end(self, state: str, reason: str) -> None:
        """Say that the run is over, or only this session of it; wait until all have heard."""
        over = state in ("finished", "solved", "stopped")
        self.order = (
            Orders("over", reason=reason)
            if over
            else Orders("wait", reason=f"the head has stopped ({reason})")
        )
        deadline = time.monotonic() + FAREWELL_SECS
        while time.monotonic() < deadline:
            with self._lock:
                if all(session.told_over for session in self.sessions.values()):
                    break
            time.sleep(LOOK_SECS / 4)

    def most_bytes(self) -> int:
        """Of one message: frames of a host, or what it begins with."""
        specs = [
            {carried.number: leaves}
            for node in self.open.values()
            for carried in relays_at_head(self.wired, node, node.places[:1])
            for leaves in (carried.relay.sends, carried.relay.receives)
        ]
        return max(MESSAGE_BYTES, len(self.parts) + OVERHEAD_BYTES, *map(most_bytes, specs))

    def numbers(self) -> tuple[float, float]:
        """Hosts that take part, and their actors."""
        with self._lock:
            acting = [session for session in self.sessions.values() if session.node.has_envs]
            actors = sum(session.status.actors_alive for session in acting)
            return float(len(self.sessions)), float(actors)


def _range(places: list[int]) -> str:
    """``(2 to 9)``, as the logs and metrics number them."""
    first, last = min(places), max(places)
    if last - first + 1 > len(places):
        return f"({', '.join(map(str, places))})"
    return f"({first} to {last})" if last > first else f"({first})"


def stand_for_hosts(
    order: dict[str, Any], plan: Plan, shared: SharedProgram, control: Control, inbox: Inbox
) -> None:
    """Listen until the run, or this session of it, is over."""
    run = Path(order["run"])
    vitals: VitalsWriter = shared.wired.ports_of(order["role"], 0).use("vitals")
    anew = order["first"] and not order["life"]
    with contextlib.ExitStack() as closing:
        reception = Reception(
            plan,
            shared,
            control,
            run=run.name,
            start_steps=order["start_steps"],
            epoch=order["launch"] * 1000 + order["life"],
            parts=_parts(order) if shared.wired.program.acting.keeps_session else b"",
            probe=closing.enter_context(probe_in(run)),
        )
        server = closing.enter_context(_listening(plan, run, reception, control, anew=anew))
        control.send("started")
        while (stop := inbox.stopping()) is None:
            time.sleep(LOOK_SECS)
            reception.drop_silent()
            vitals.tell([*reception.numbers(), float(server.refusals.total)])
        reception.end(stop.state, stop.reason)


def check_listening(config: RunConfig) -> None:
    """Refuse an address, a certificate or an installation that cannot be used, before a run is."""
    import rookery.carriers.grpc_head  # noqa: F401  the extra may be missing

    hosts = config.hosts
    assert hosts.listen is not None
    if hosts.certificate is not None and hosts.key is not None:
        from_files(Path(hosts.certificate), Path(hosts.key))
    if hosts.token_file is not None:
        given_token(Path(hosts.token_file))
    host, port = parse_address(hosts.listen)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"--listen {hosts.listen}: the port is in use, or the address is not of this "
                f"machine ({error.strerror or error}); choose another"
            ) from error


def _parts(order: dict[str, Any]) -> bytes:
    """What those begin with who hold weights of their own."""
    if order["resume"] is not None:
        checkpoint = load_checkpoint(Path(order["resume"]))
        return pack_parts({name: checkpoint.parts[name] for name in LEARNER_PARTS})
    if order["init_from"] is not None:
        return pack_parts({"weights": starting_weights(Path(order["init_from"])).parts["weights"]})
    return b""


@contextmanager
def _listening(
    plan: Plan, run: Path, reception: Reception, control: Control, *, anew: bool
) -> Iterator[HeadServer]:
    """The server, its address in the run directory, and, where it listens ``anew``, the line by
    which hosts join it."""
    from rookery.carriers.grpc import Limits
    from rookery.carriers.grpc_head import HeadServer

    listen = plan.config.hosts.listen
    assert listen is not None
    host, _ = parse_address(listen)
    # Later gateways have the token of the first, whatever has become of its file.
    token = token_of_run(run, _given_token(plan) if anew else None)
    certificate = _certificate(plan, run, host)
    server = HeadServer(
        listen,
        token=token,
        tls=certificate,
        desk=reception,
        limits=Limits(
            hosts=sum(node.left_to_hosts for node in reception.open.values()),
            message_bytes=reception.most_bytes(),
        ),
        say=_LOG.warning,
    )
    address = write_address(_reachable(host), server.port)
    fingerprint = certificate.fingerprint if certificate is not None else None
    write_head_address(run, HeadAddress(address=address, fingerprint=fingerprint))
    try:
        words = ["rookery", "join", address, *_known_by(plan, token)]
        words += [] if fingerprint is None else ["--fingerprint", fingerprint]
        shown = anew and plan.config.engine == "local"  # others start their hosts themselves
        for node in reception.open.values() if shown else ():
            offer = ["--actors", "8"] if node.has_envs else ["--role", node.name]
            control.send("notice", text=f"others join by: {' '.join([*words, *offer])}")
        yield server
    finally:
        server.stop()
        remove_head_address(run)


def _known_by(plan: Plan, token: str) -> list[str]:
    """How a host shows its token; one that came from a file is not printed."""
    file = plan.config.hosts.token_file
    return ["--token", token] if file is None else ["--token-file", file]


def _given_token(plan: Plan) -> str | None:
    file = plan.config.hosts.token_file
    return given_token(Path(file) if file is not None else None)


def _certificate(plan: Plan, run: Path, host: str) -> Tls | None:
    """What the head shows; None where only this machine can reach it."""
    hosts = plan.config.hosts
    if hosts.certificate is not None and hosts.key is not None:
        return from_files(Path(hosts.certificate), Path(hosts.key))
    return None if is_loopback(host) else self_signed(run)


def _reachable(host: str) -> str:
    """``host``; where that is every address of this machine, the one that others would use."""
    if host not in ("0.0.0.0", "::"):
        return host
    family, far = (socket.AF_INET6, "2001:db8::1") if ":" in host else (socket.AF_INET, "192.0.2.1")
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((far, 9))  # which sends nothing
        return str(probe.getsockname()[0])
    return next(_own_addresses(), socket.gethostname())


def _own_addresses() -> Iterator[str]:
    """Of this machine's interfaces, for where there is no way out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                found = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if not is_loopback(address := socket.inet_ntoa(found[20:24])):
                    yield address


_SIOCGIFADDR = 0x8915
"""Linux's call for an interface's address."""
