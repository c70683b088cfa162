"""By which link each engine carries each kind of port."""

from __future__ import annotations

from collections.abc import Mapping

from rookery.core.ports import Kind
from rookery.programs.graph import Link

_KINDS: tuple[Kind, ...] = ("stream", "cell", "call", "group", "memory")

_CARRIES: dict[str, dict[Kind, Link]] = {
    "inline": dict.fromkeys(_KINDS, "call"),
    "local": dict.fromkeys(_KINDS, "shared_memory"),
    "ray": dict.fromkeys(_KINDS, "shared_memory"),  # at the head; hosts join it
    "mpi": {"stream": "message", "cell": "message", "call": "message", "group": "collective"},
}


def carries(engine: str) -> Mapping[Kind, Link]:
    """Kinds of ports that ``engine`` can carry, and how."""
    return _CARRIES[engine]
