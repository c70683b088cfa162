"""What the head of a run and its hosts tell each other, whatever carries it.

A host registers and is assigned places; from then on it reports how it does and hears what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rookery.core.errors import UserError

State = Literal["run", "wait", "stop", "over"]
"""run: go on; wait: keep the session, do not act; stop: end this host's part; over: the run is."""


class Refused(UserError):  # noqa: N818 - says what happened
    """The head refuses a host; ``again``: registering anew, later, may help."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


class Unreachable(UserError):  # noqa: N818 - says what happened
    """The head did not answer; trying again may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A host that would like to take part."""

    host: str
    """Its name for people."""
    pid: int
    rookery_version: str
    num_actors: int
    """How many replicas it offers to run."""
    role: str = ""
    """Of which role; '': of those that act."""
    cores: int = 0
    run: str = ""
    """The run it was part of; '': whichever the head has."""
    identity: str = ""
    """Of the process, made at random: who registers anew has left its session before."""
    address: str = ""
    """Where it called from, as the head sees it."""


@dataclass(frozen=True, slots=True)
class Probe:
    """By which a host knows that it sees the head's run directory."""

    directory: str
    """Where the head has it."""
    name: str
    """Of a file in it,"""
    content: str
    """and what that holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a host is to run."""

    session: str
    """Names this registration from now on."""
    places: list[tuple[int, int]]
    """For each of its replicas the place in the program, and the number of its life: a new one."""
    role: str = ""
    """What they are; '': nothing, the run is over."""
    config: Mapping[str, Any]
    signature: Mapping[str, Any]
    start_steps: int
    run: str
    lease_secs: float
    """Without a heartbeat for so long the session is over."""
    parts: bytes = b""
    """Packed parts of a checkpoint, for roles that begin with more than published weights."""
    probe: Probe | None = None
    """For roles that need the run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """How a host does."""

    actors_alive: int
    restarts: int = 0
    message: str = ""
    error: str = ""
    """Why it cannot go on; '' while it can."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a host is to do."""

    state: State = "run"
    reason: str = field(default="", kw_only=True)


def missing_extra(error: ImportError) -> UserError:
    """What to say where a package of the network link is not installed."""
    return UserError(
        f'hosts are joined by gRPC, which is not installed ({error}); pip install "rookery[grpc]" '
        "brings it"
    )
