"""The processes of one run: started, spoken to, watched and ended by the driver."""

from __future__ import annotations

import logging
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from rookery.engines.fork_server import Child, ForkServer
from rookery.programs.graph import Node
from rookery.runs.directory import RunDirectory
from rookery.transport.control import Control, Message

_LOG = logging.getLogger(__name__)

END_SECS = 5.0
"""How long a process that was killed may take to be gone."""


@dataclass(slots=True)
class Process:
    """One replica of a role, through all its lives."""

    node: Node
    replica: int
    order: dict[str, Any]
    life: int = 0
    child: Child | None = None
    control: Control | None = None
    error: Message | None = None
    hung: bool = False
    done: bool = False

    @property
    def name(self) -> str:
        """``actor-3``."""
        return f"{self.node.name}-{self.replica}"


@dataclass(slots=True)
class Fleet:
    """All processes, and who starts them."""

    run: RunDirectory
    server: ForkServer
    processes: list[Process] = field(default_factory=list)

    def launch(self, process: Process) -> None:
        """Start a replica's process, or its next life."""
        ours, theirs = socket.socketpair()
        log = self.run.log_path(process.node.name, process.replica)
        log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, log.open("ab") as output:
            threads = process.order["num_threads"]
            process.child = self.server.start(theirs, output, num_threads=threads)
        process.control = Control(ours)
        process.error, process.hung, process.done = None, False, False
        process.control.send("order", **process.order, life=process.life, sys_path=sys.path)

    def tell(self, process: Process, kind: str, **content: Any) -> None:
        """Send a message."""
        if process.control is not None:
            process.control.send(kind, **content)

    def end(self, *, gently: bool, state: str = "stopped", reason: str = "the run is over") -> None:
        """End every process: asked first if ``gently``, killed otherwise or when it takes long.
        ``state`` and ``reason`` are the run's."""
        if gently:
            for process in self.processes:
                if process.control is not None:
                    process.control.send("stop", state=state, reason=reason)
            begun = time.monotonic()
            for process in self.processes:
                if process.child is not None:
                    end = begun + process.node.grace_secs
                    process.child.wait(max(end - time.monotonic(), 0.0))
        for process in self.processes:
            self.kill(process)

    def kill(self, process: Process) -> None:
        """End one process at once, and be sure of it."""
        if process.child is not None:
            process.child.kill()
        if process.control is not None:
            # Who ended with the fork server has nobody left to tell of it but the socket.
            if self.server.code is not None and not process.control.drain(END_SECS):
                _LOG.warning("%s has not ended within %.0f s", process.name, END_SECS)
            process.control.close()
            process.control = None
