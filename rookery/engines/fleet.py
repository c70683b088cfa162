"""The processes of one run: started, spoken to, watched and ended by the driver."""

from __future__ import annotations

import logging
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from rookery.engines.nursery import Child, Nursery
from rookery.runs.directory import RunDirectory
from rookery.transport.control import Control, Message

_LOG = logging.getLogger(__name__)

END_SECS = 5.0
"""How long a process may take to end by itself before it is killed."""
SNAPSHOT_SECS = 300.0
"""The same for replay, which may be writing its last snapshot."""


@dataclass(slots=True)
class Member:
    """One replica of a role, through all its lives."""

    role: str
    replica: int
    order: dict[str, Any]
    life: int = 0
    process: Child | None = None
    control: Control | None = None
    error: Message | None = None
    hung: bool = False
    done: bool = False

    @property
    def name(self) -> str:
        """``actor-3``."""
        return f"{self.role}-{self.replica}"


@dataclass(slots=True)
class Fleet:
    """All members, and who starts them."""

    run: RunDirectory
    nursery: Nursery
    members: list[Member] = field(default_factory=list)

    def launch(self, member: Member) -> None:
        """Start a member's process, or its next life."""
        ours, theirs = socket.socketpair()
        log = self.run.log_path(member.role, member.replica)
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("ab") as output:
            threads = member.order["num_threads"]
            member.process = self.nursery.start(theirs, output, num_threads=threads)
        member.control = Control(ours)
        member.error, member.hung, member.done = None, False, False
        member.control.send("order", **member.order, life=member.life, sys_path=sys.path)

    def member(self, role: str, replica: int = 0) -> Member | None:
        """The member of that name, if there is one."""
        return next((m for m in self.members if (m.role, m.replica) == (role, replica)), None)

    def tell(self, role: str, kind: str, **content: Any) -> None:
        """Send a message to the first replica of ``role``, if there is one."""
        member = self.member(role)
        if member is not None and member.control is not None:
            member.control.send(kind, **content)

    def end(self, *, gently: bool) -> None:
        """End every process: asked first if ``gently``, killed otherwise or when it takes long."""
        if gently:
            for member in self.members:
                if member.control is not None:
                    member.control.send("stop", state="stopped", reason="the run is over")
            begun = time.monotonic()
            for member in self.members:
                if member.process is not None:
                    end = begun + (SNAPSHOT_SECS if member.role == "replay" else END_SECS)
                    member.process.wait(max(end - time.monotonic(), 0.0))
        for member in self.members:
            self.kill(member)

    def kill(self, member: Member) -> None:
        """End one process at once, and be sure of it."""
        if member.process is not None:
            member.process.kill()
        if member.control is not None:
            # Who ended with the nursery has nobody left to tell of it but the socket.
            if self.nursery.code is not None and not member.control.drain(END_SECS):
                _LOG.warning("%s has not ended within %.0f s", member.name, END_SECS)
            member.control.close()
            member.control = None
