"""Where one replica of a role is: its plan, its ends of ports, and how far the run had come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.core.errors import UserError
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import InTurn, Wakeup
from rookery.programs.plan import Plan

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ports:
    """The ends that a replica holds."""

    uses: Mapping[str, Any] = field(default_factory=dict)
    """Its ends of ports that others serve, and of groups, by the ports' names."""
    serves: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Its ends of ports that it serves, by name and by who uses them."""

    def use(self, name: str) -> Any:
        """The end of the port called ``name``."""
        if name not in self.uses:
            raise UserError(f"no edge for port {name}; join this role to one that serves it")
        return self.uses[name]

    def serve(self, name: str) -> Any:
        """The only end of the port called ``name`` that is served here."""
        ends = list(self.serves.get(name, {}).values())
        if len(ends) != 1:
            raise UserError(f"port {name} has {len(ends)} edges to this role; one is needed")
        return ends[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What a node's ``build`` makes a role of."""

    plan: Plan
    ports: Ports
    replica: int = 0
    life: int = 0
    """How often this replica was replaced since all were started."""
    start_steps: int = 0
    """Steps of the run when all were started: those of the checkpoint it goes on from."""
    exact: bool = False
    """Whether the replica's own state in that checkpoint is loaded next."""
    run: Path | None = None
    """The run directory."""
    heartbeat: Heartbeat = field(default_factory=Heartbeat)
    own: Wakeup = field(default_factory=InTurn)
    """What wakes this replica."""
    warn: Callable[[str], None] = _LOG.warning
    """Tell the user something that matters."""
    should_stop: Callable[[], bool] = lambda: False
    """Asked by what plays whole episodes."""
    leaving: Callable[[], bool] | None = None
    """Whether the run is about to end, so that what is half made, a rollout or an update, is not
    finished; once true, it stays so. None: all that is begun is finished."""

    @property
    def actor_seed(self) -> int:
        """What the random streams of an actor here begin with."""
        start = 0 if self.exact else self.start_steps
        return self.plan.actor_seed(self.replica, self.life, start)
