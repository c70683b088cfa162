"""What every engine is given and gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rookery.engines.fork_server import ForkServer
from rookery.engines.interrupt import Interrupt
from rookery.programs.plan import Plan
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.directory import RunDirectory
from rookery.runs.session import Callbacks, Outcome

ResumeMode = Literal["weights", "all"]


@dataclass(slots=True)
class Job:
    """One session of a run: what is carried, where it is written, and what it starts from."""

    plan: Plan
    run: RunDirectory
    callbacks: Callbacks = field(default_factory=Callbacks)
    resume: Checkpoint | None = None
    """Go on from here exactly."""
    init_from: Checkpoint | None = None
    """Start with these weights, everything else new."""
    fork_server: ForkServer | None = None
    """Starts processes, if someone has begun to prepare it already; the engine closes it."""
    interrupt: Interrupt = field(default_factory=Interrupt)
    """By what it is ended before it is over: signals, or whoever else asks."""


@dataclass(slots=True)
class Finish:
    """How a session ended."""

    outcome: Outcome
    steps: int
    updates: int
    wall_secs: float
    restarts: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
