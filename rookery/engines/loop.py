"""The one loop that runs roles: one in a process or thread of its own, or several in turn."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.core.heartbeat import Heartbeat
from rookery.engines.assemble import Wired
from rookery.engines.interrupt import Stop
from rookery.programs.graph import Node
from rookery.programs.place import Place, Ports
from rookery.programs.plan import Plan
from rookery.transport.vitals import VitalsWriter

if TYPE_CHECKING:
    from rookery.engines.session_owner import SessionOwner

_LOG = logging.getLogger(__name__)

POLL_SECS = 0.2
STARVED_SECS = 30.0
"""Without anything to learn from for so long, the log says who is waited for."""


Stopping = Callable[[], Stop | None]


@dataclass(slots=True)
class Member:
    """A replica of a role that runs here."""

    node: Node
    replica: int
    role: Any
    ports: Ports
    heartbeat: Heartbeat
    vitals: VitalsWriter

    @property
    def name(self) -> str:
        """``actor-3``."""
        return f"{self.node.name}-{self.replica}"

    def tell(self) -> None:
        """Bring the numbers that it tells of itself up to date."""
        if self.node.metrics:
            self.vitals.tell(list(self.role.metrics().values()))


def build_member(
    wired: Wired,
    plan: Plan,
    node: Node,
    replica: int,
    *,
    run: Path,
    life: int = 0,
    start_steps: int = 0,
    exact: bool = False,
    stopping: Stopping = lambda: None,
    leaving: Callable[[], bool] | None = None,
    warn: Callable[[str], None] = _LOG.warning,
    tick: Callable[[], None] = lambda: None,
) -> Member:
    """Replica ``replica`` of ``node`` with its ends of the edges; see :class:`Place`."""
    ports = wired.ports_of(node.name, replica, life)
    vitals: VitalsWriter = ports.use("vitals")
    heartbeat = Heartbeat(vitals.cells, tick)
    place = Place(
        plan=plan,
        ports=ports,
        replica=replica,
        life=life,
        start_steps=start_steps,
        exact=exact,
        run=run,
        heartbeat=heartbeat,
        own=wired.wakeups[node.name][replica],
        should_stop=lambda: stopping() is not None,
        leaving=leaving if node.leaves else None,
        warn=warn,
    )
    return Member(node, replica, node.build(place), ports, heartbeat, vitals)


class NowAndThen:
    """Asks others, by ``ask``, only a few times a second; once true, it stays so."""

    def __init__(self, ask: Callable[[], bool], every_secs: float = POLL_SECS) -> None:
        self.ask, self.every_secs = ask, every_secs
        self.answer, self.asked = False, -every_secs

    def __call__(self) -> bool:
        """The newest answer."""
        moment = time.monotonic()
        if not self.answer and moment - self.asked >= self.every_secs:
            self.asked = moment
            self.answer = self.ask()
        return self.answer


def run_members(
    members: Sequence[Member],
    stopping: Stopping,
    owner: SessionOwner | None = None,
    *,
    sleeps: bool = True,
) -> None:
    """Let each have its turn until the session, or who follows it, is over.

    ``sleeps``: others, elsewhere, may bring something; without them nobody would ever go on.
    """
    starvation = Starvation()
    acting = [member for member in members if member.node.has_envs]
    while owner.go_on() if owner is not None else _go_on(members, stopping):
        worked = False
        for member in members:
            worked |= _turn(member, members, owner)
            if acting and member.role.midway():
                worked |= _finish_turn(member, acting, members, stopping, owner)
        if worked:
            starvation.over()
        elif sleeps:
            members[0].role.wait(POLL_SECS)
            if owner is not None:
                acting_node = owner.program.acting
                missing = {part // acting_node.num_parts for part in owner.role.missing()}
                starvation.warn(acting_node.name, sorted(missing))
        else:
            raise RuntimeError("no role can go on: the program is not wired as a cycle")


def _go_on(members: Sequence[Member], stopping: Stopping) -> bool:
    return stopping() is None and not all(member.role.done() for member in members)


def _turn(member: Member, members: Sequence[Member], owner: SessionOwner | None) -> bool:
    """One step of ``member``, if it can make one; whether it did."""
    role = member.role
    owns = owner is not None and owner.member is member
    if role.done() or not role.ready():
        if owner is not None and owns:
            owner.idle()
        return False
    begun = time.monotonic()
    update = role.step()
    if len(members) > 1:  # whoever has not the turn waits
        secs = time.monotonic() - begun
        for other in members:
            if other is not member:
                other.heartbeat.waited(secs)
    if owner is not None and owns and update is not None:
        owner.note(update)
    if member.node.metrics and member.vitals.due():
        member.tell()
    return True


def _finish_turn(
    member: Member,
    acting: Sequence[Member],
    members: Sequence[Member],
    stopping: Stopping,
    owner: SessionOwner | None,
) -> bool:
    """Let those that act, ``member`` and all of its kind end what it has begun; whether anybody did
    anything.

    When the run is over, what takes long is left half made by who may leave it.
    """
    begun, worked = time.monotonic(), False
    kind = [each for each in members if each.node is member.node]
    while member.role.midway():
        turns = [_turn(each, members, owner) for each in (*acting, *kind)]
        worked |= any(turns)
        slow = member.node.leaves and time.monotonic() - begun > POLL_SECS
        if not any(turns) or (slow and _is_over(stopping, owner)):
            break
    return worked


def _is_over(stopping: Stopping, owner: SessionOwner | None) -> bool:
    return not owner.go_on() if owner is not None else stopping() is not None


class Starvation:
    """How long a role has had nothing to work on; said in the log every now and then."""

    def __init__(self) -> None:
        self.since = self.said = time.monotonic()

    def over(self) -> None:
        """There was something."""
        self.since = self.said = time.monotonic()

    def warn(self, role: str, missing: list[int]) -> None:
        """Say whom it waits for, and since when."""
        moment = time.monotonic()
        if moment - self.said < STARVED_SECS:
            return
        self.said = moment
        names = ", ".join(f"{role}-{replica}" for replica in missing) or "the others"
        _LOG.warning("waiting for experience of %s for %.0f s", names, moment - self.since)
