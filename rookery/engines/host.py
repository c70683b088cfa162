"""A joined host: the replicas that the head assigns, run and watched as at the head.

::

    rookery join HEAD --actors 8

The head says what to run and with which settings. A host that loses the head ends its processes,
waits and registers anew; one whose run is over ends well.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rookery.carriers.pump import Pump
from rookery.carriers.tokens import FILE_NAME, given_token, read_token
from rookery.core.errors import RunFailed, UserError
from rookery.core.hosts import (
    Assignment,
    HostStatus,
    Orders,
    Refused,
    Registration,
    Unreachable,
)
from rookery.core.signature import Signature
from rookery.core.spec import Array
from rookery.engines.fleet import Fleet, Process
from rookery.engines.fork_server import ForkServer
from rookery.engines.interrupt import Interrupt
from rookery.engines.joined import JoinedReplicas
from rookery.engines.process import heartbeats_of
from rookery.engines.supervision import Supervisor
from rookery.programs.plan import Plan, probe
from rookery.recipes.settings import config_from_tree
from rookery.runs.atomic import write_atomic
from rookery.runs.directory import RunDirectory
from rookery.runs.head_address import read_head_address
from rookery.runs.shared_probe import seen_here
from rookery.runs.supervise import RestartBudget
from rookery.transport.control import Message

_LOG = logging.getLogger(__name__)

HEARTBEAT_SECS = 1.0
FIRST_PAUSE_SECS, LONGEST_PAUSE_SECS = 0.5, 15.0
"""Between two tries to reach the head."""
SETTLED_SECS = 10.0
"""A session that lasted so long was one; shorter ones count as tries to join."""


class Exchange(Protocol):
    """Frames that pass."""

    broken: threading.Event
    """Set when they do not any more."""

    error: UserError | None
    """Why, if there was an error."""

    @property
    def reason(self) -> str:
        """Why, in one line."""
        ...

    def close(self) -> None:
        """Send what is pending, and end it."""
        ...


class Link(Protocol):
    """The way to the head; :class:`~rookery.carriers.grpc_host.HostClient` is one."""

    def register(self, registration: Registration) -> Assignment:
        """Ask for places."""
        ...

    def heartbeat(self, session: str, status: HostStatus) -> Orders:
        """Say how this host does, and hear what to do."""
        ...

    def leave(self, session: str, reason: str) -> None:
        """Give the places back."""
        ...

    def exchange(self, session: str, pump: Pump) -> Exchange:
        """Pass the frames of ``pump`` in the background until it breaks."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Dialer(Protocol):
    """Who finds the head, for every try anew."""

    @property
    def address(self) -> str:
        """Where the head was last found."""
        ...

    def dial(self) -> Link:
        """A new connection; :class:`Unreachable` while there is no head."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """Where the head is, and how each side knows the other."""

    address: str
    token: str = field(repr=False)
    fingerprint: str | None = None
    authority: Path | None = None

    def dial(self) -> Link:
        """A new connection."""
        from rookery.carriers.grpc import Limits
        from rookery.carriers.grpc_host import HostClient

        return HostClient(
            self.address,
            limits=Limits(message_bytes=(1 << 31) - 1),  # what the head sends is what it likes
            token=self.token,
            fingerprint=self.fingerprint,
            authority=self.authority,
        )


@dataclass(slots=True)
class WayByRun:
    """The way to the head of a run whose directory this host sees, looked up for every try: a head
    that is resumed may be elsewhere."""

    directory: Path
    address: str = ""
    """Where the head was last found."""

    def dial(self) -> Link:
        """A new connection."""
        found = read_head_address(self.directory)
        if found is None:
            raise Unreachable(f"no head of {self.directory} listens yet")
        self.address = found.address
        token = read_token(self.directory / FILE_NAME)
        return Way(found.address, token, found.fingerprint).dial()


def token_of(given: str | None, file: Path | None) -> str:
    """What the head knows its hosts by."""
    token = given or given_token(file)
    if token is None:
        raise UserError(
            "give the --token that the head has printed, a --token-file, or ROOKERY_TOKEN"
        )
    return token


@dataclass(slots=True, kw_only=True)
class Joining:
    """How to take part."""

    way: Dialer
    num_actors: int
    role: str = ""
    """What it runs; '': actors, or whatever acts."""
    directory: Path | None = None
    """Where this host sees the head's run directory; None: where the head does."""
    give_up_secs: float
    logs: Path | None = None
    say: Callable[[str], None] = print
    run: str = ""
    """The run that it was part of."""
    unreached_since: float = field(default_factory=time.monotonic)
    budget: RestartBudget | None = None
    """Deaths of the processes here, over all sessions."""
    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    interrupt: Interrupt = field(default_factory=lambda: Interrupt(quiet=True))
    """By what it leaves before the run is over."""

    def registration(self) -> Registration:
        """What the head is told."""
        from rookery import __version__

        return Registration(
            host=socket.gethostname(),
            pid=os.getpid(),
            rookery_version=__version__,
            num_actors=self.num_actors,
            cores=len(os.sched_getaffinity(0)),
            run=self.run,
            identity=self.identity,
            role=self.role,
        )


def take_part(joining: Joining, server: ForkServer) -> int:
    """Work for the head, again and again if need be, until the run is over; the exit code."""
    with joining.interrupt as interrupt:
        pause = FIRST_PAUSE_SECS
        while True:
            found = _register(joining, interrupt)
            if found is None:
                return 130
            link, assignment = found
            joining.run, begun = assignment.run, time.monotonic()
            try:
                orders = _Part(joining, link, assignment, server).serve(interrupt)
            finally:
                link.close()
            if orders.state == "over":
                joining.say(f"the run is over: {orders.reason}")
                return 0
            if orders.state == "stop":
                return 130
            joining.say(f"{orders.reason}; waiting to join again")
            if time.monotonic() - begun > SETTLED_SECS:
                joining.unreached_since, pause = time.monotonic(), FIRST_PAUSE_SECS
            _sleep(pause, interrupt)
            pause = min(pause * 1.5, LONGEST_PAUSE_SECS)


def _sleep(secs: float, interrupt: Interrupt) -> None:
    deadline = time.monotonic() + secs
    while time.monotonic() < deadline and not interrupt.requested:
        time.sleep(0.1)


def _register(joining: Joining, interrupt: Interrupt) -> tuple[Link, Assignment] | None:
    """Places at the head, as soon as it is there and has some; None if interrupted."""
    pause, said = FIRST_PAUSE_SECS, ""
    while not interrupt.requested:
        try:
            return _registered(joining)
        except UserError as error:
            waited = time.monotonic() - joining.unreached_since
            if not may_help(error):
                raise
            if waited > joining.give_up_secs:
                raise type(error)(
                    f"{error}; given up after {waited:.0f} s (--give-up-after)"
                ) from error
            if str(error) != said:
                said = str(error)
                joining.say(f"{error}; trying again for {joining.give_up_secs - waited:.0f} s")
        _sleep(pause, interrupt)
        pause = min(pause * 1.5, LONGEST_PAUSE_SECS)
    return None


def _registered(joining: Joining) -> tuple[Link, Assignment]:
    """One try."""
    link = joining.way.dial()
    try:
        return link, link.register(joining.registration())
    except BaseException:
        link.close()
        raise


def may_help(error: UserError) -> bool:
    """Whether trying again may."""
    return isinstance(error, Unreachable) or (isinstance(error, Refused) and error.again)


class _Part:
    """One session: the processes of this host, and what follows from what they do."""

    def __init__(
        self, joining: Joining, link: Link, assignment: Assignment, server: ForkServer
    ) -> None:
        self.joining, self.link, self.assignment, self.server = joining, link, assignment, server
        self.orders = Orders("run")
        self.replicas: JoinedReplicas | None = None
        self.exchange: Exchange | None = None
        self.supervisor: Supervisor | None = None
        self._lost = False
        self._ended = threading.Event()

    def serve(self, interrupt: Interrupt) -> Orders:
        """Act until the head says that it is over, or is lost."""
        if not self.assignment.places:
            return Orders("over", reason="it ended while this host was away")
        heartbeats = threading.Thread(target=self._tell, name="heartbeat", daemon=True)
        heartbeats.start()  # to import and build an environment may take longer than a lease
        try:
            with self._joined(interrupt) as supervisor:
                while not self._over(interrupt):
                    supervisor.look()
        except UserError as error:
            if not may_help(error):
                raise
            return Orders("wait", reason=str(error))
        finally:
            self._ended.set()
            heartbeats.join(timeout=HEARTBEAT_SECS * 5)
        if interrupt.requested:
            return Orders("stop", reason=interrupt.reason)
        return self.orders

    def _leave(self, reason: str) -> None:
        try:
            self.link.leave(self.assignment.session, reason)
        except UserError:
            _LOG.warning("the head could not be told why this host leaves")

    def _over(self, interrupt: Interrupt) -> bool:
        exchange = self.exchange
        if self.orders.state == "run" and exchange is not None and exchange.broken.is_set():
            if exchange.error is not None and not may_help(exchange.error):
                raise exchange.error
            self.orders = Orders("wait", reason=f"the head is lost ({exchange.reason})")
        if self.orders.state == "run" and self._lost:
            self.orders = Orders("wait", reason="all here begin anew")
        return interrupt.requested or self.over()

    # ---- set-up ----------------------------------------------------------------------------------

    @contextmanager
    def _joined(self, interrupt: Interrupt) -> Iterator[Supervisor]:
        """The processes run and frames pass; whoever ends that tells the head why."""
        fleet = Fleet(self._directory(), self.server)
        try:
            shared = self._shared()
            plan = self._plan()
            self.program = plan.program()
            self.node = self.program.node(self.assignment.role)
            self.joining.budget = self.joining.budget or RestartBudget(plan.config.supervise)
            supervisor = self.supervisor = Supervisor(fleet, plan.config, self, self.joining.budget)
            # First what the head keeps for these replicas, then the replicas.
            self.exchange = self._exchange()
            self._launch(plan, fleet, shared)
            num = len(self.assignment.places)
            what = f"with {num} actors" if self.node.has_envs else f"as {self.node.name}"
            self.joining.say(
                f"joined {self.assignment.run} at {self.joining.way.address} {what}; "
                f"logs in {fleet.run.logs}"
            )
            yield supervisor
            if interrupt.requested:
                self._leave(f"it was ended ({interrupt.reason})")
        except UserError as error:
            if not may_help(error):
                self._leave(str(error))
            raise
        finally:
            fleet.end(gently=self.orders.state == "over")
            if self.exchange is not None:
                self.exchange.close()
            if self.replicas is not None:
                self.replicas.close()
            if self.server.code is not None:
                self.server.restart()

    def _exchange(self) -> Exchange:
        """Frames between the head and the memory of the replicas here."""
        places = [place for place, _ in self.assignment.places]
        replicas = JoinedReplicas.create(self.program, self.node, places)
        self.replicas, pump = replicas, Pump([replicas.link])
        for carried in replicas.relays():
            pump.add(carried.number, carried.relay, first=carried.first, wakes=carried.wakes)
        return self.link.exchange(self.assignment.session, pump)

    def _plan(self) -> Plan:
        """What the head runs, if this host can make its environment."""
        assignment = self.assignment
        config = config_from_tree(dict(assignment.config), "the head's settings")
        signature = Signature.from_json(dict(assignment.signature))
        try:
            mine = probe(config.env, config.seed)
        except UserError as error:
            raise type(error)(
                f"environment {config.env.id} cannot be made here: {error}"
            ) from error
        difference = signature.difference(mine)
        if difference is not None:
            raise UserError(
                f"environment {config.env.id} is another one here than at the head "
                f"({difference}); install the same version"
            )
        return Plan.of(config, signature)

    def _shared(self) -> Path | None:
        """The head's run directory, if what runs here needs it."""
        probe = self.assignment.probe
        return seen_here(probe, self.joining.directory) if probe is not None else None

    def _directory(self) -> RunDirectory:
        """Where the logs of what runs here go."""
        name = f"{self.assignment.run}-joined-{socket.gethostname()}-{os.getpid()}"
        path = self.joining.logs or Path("runs") / name
        (path / "logs").mkdir(parents=True, exist_ok=True)
        return RunDirectory(path)

    def _launch(self, plan: Plan, fleet: Fleet, shared: Path | None) -> None:
        assert self.replicas is not None
        node, run = self.node, fleet.run
        self.server.name(run.path.name)
        self.server.share(self.replicas.pass_fds())
        order: dict[str, Any] = {
            "run": str(run.path.absolute()),
            "config": plan.config.to_tree(),
            "signature": plan.signature.to_json(),
            "fds": self.replicas.descriptors(),
            "resume": None,
            "start_steps": self.assignment.start_steps,
            "init_from": None,
            "restarts": 0,
            "tell_episodes": False,
            "places": list(self.replicas.places),
            "directory": str(shared.absolute()) if shared is not None else None,
            "parts": self._written_parts(run),
        }
        for place, life in self.assignment.places:
            own = {"role": node.name, "replica": place, "num_threads": node.num_threads}
            process = Process(node, place, order | own, life=life)
            fleet.processes.append(process)
            fleet.launch(process)

    def _written_parts(self, run: RunDirectory) -> str | None:
        """The file of what roles here begin with."""
        if not self.assignment.parts:
            return None
        path = run.path / "parts"
        write_atomic(path, self.assignment.parts)
        return str(path.absolute())

    # ---- what the head hears ---------------------------------------------------------------------

    def _tell(self) -> None:
        """Heartbeats, until this session ends or the head does not want it any more."""
        session, lease_secs = self.assignment.session, self.assignment.lease_secs
        while not self._ended.wait(min(HEARTBEAT_SECS, lease_secs / 5)):
            supervisor = self.supervisor
            processes = supervisor.fleet.processes if supervisor is not None else []
            alive = sum(p.child is not None and p.child.code is None for p in processes)
            restarts = supervisor.restarts if supervisor is not None else 0
            status = HostStatus(actors_alive=alive, restarts=restarts)
            try:
                orders = self.link.heartbeat(session, status)
            except Unreachable:
                continue  # a short cut; a long one breaks the exchange
            except UserError as error:
                orders = Orders("wait", reason=str(error))
            if orders.state != "run":
                self.orders = orders
                return

    # ---- what the supervisor asks and tells ------------------------------------------------------

    def heard(self, process: Process, kind: str, message: Message) -> None:
        """What a process says."""
        if kind == "warning":
            _LOG.warning("%s: %s", process.name, message["text"])

    def over(self) -> bool:
        """Whether this session has ended."""
        return self.orders.state != "run"

    def died(self, process: Process, cause: str) -> None:
        """Another takes its place; where that cannot be, the head takes all back."""
        if process.node.on_death == "rewind":
            self.go_back(f"{process.name}: {cause}")
            return
        _LOG.warning("%s: %s; replaced", process.name, cause)
        assert self.supervisor is not None
        self.supervisor.replace(process)

    def gave_up(self, process: Process, why: str) -> None:
        """So does the host; others may join."""
        raise RunFailed(f"{why}; {self.how_to_go_on()}")

    def go_back(self, why: str) -> None:
        """All here begin anew, in another session."""
        _LOG.warning("%s", why)
        self._lost = True

    def heartbeat(self, process: Process) -> Array:
        """What the process last wrote of itself."""
        assert self.replicas is not None
        edge = heartbeats_of(self.program, process.node)
        cells: Array = self.replicas.memory(edge, process.replica)["cells"][0]
        return cells

    def how_to_go_on(self) -> str:
        """Nothing is lost but what ran here."""
        return "the run goes on without this host; mend it and join again"
