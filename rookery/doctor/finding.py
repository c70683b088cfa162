"""What a check finds, and what it is asked about.

A check is a function that looks at one thing and always answers::

    def cores(wanted: Wanted) -> Iterator[Finding]:
        yield ok("cores", "8 usable")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rookery.programs.graph import Node
    from rookery.programs.memory import Needs
    from rookery.runs.config import RunConfig

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    level: Level
    """``problem``: a run would stop; ``warning``: it would suffer; ``note``: good to know."""
    name: str
    text: str
    remedy: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    """The same as numbers, for ``--json``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the machine is asked to carry."""

    where: Path = Path("runs")
    """The directory in which runs would be."""
    nodes: tuple[Node, ...] = ()
    """The roles of a program; empty if no recipe was given."""
    config: RunConfig | None = None
    needs: Needs | None = None
    """What a run would take in memory; None if no recipe was given."""

    @property
    def engine(self) -> str:
        """What would carry the program."""
        return self.config.engine if self.config is not None else "inline"


Check = Callable[[Wanted], Iterable[Finding]]


def ok(name: str, text: str, **data: Any) -> Finding:
    """All is well."""
    return Finding("ok", name, text, "", data)


def note(name: str, text: str, remedy: str = "", **data: Any) -> Finding:
    """Good to know, nothing to do."""
    return Finding("note", name, text, remedy, data)


def warning(name: str, text: str, remedy: str, **data: Any) -> Finding:
    """Runs work, but suffer."""
    return Finding("warning", name, text, remedy, data)


def problem(name: str, text: str, remedy: str, **data: Any) -> Finding:
    """A run would stop."""
    return Finding("problem", name, text, remedy, data)


def size(num_bytes: float) -> str:
    """``3.2 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} GiB"
