"""Which links each engine carries which port by."""

from __future__ import annotations

from rookery.programs.graph import Link

_CARRIES: dict[str, dict[str, Link]] = {
    "inline": {
        "experience": "call",
        "queue": "call",
        "params": "call",
        "gradients": "call",
        "weights": "call",
        "steps": "call",
        "sequences": "call",
        "evaluation": "call",
    },
    "local": {
        "experience": "shared_memory",
        "queue": "shared_memory",
        "params": "shared_memory",
        "gradients": "shared_memory",
        "weights": "shared_memory",
        "steps": "shared_memory",
        "sequences": "shared_memory",
        "evaluation": "directory",
    },
    "mpi": {
        "experience": "message",
        "params": "message",
        "gradients": "collective",
        "evaluation": "call",
    },
}


def carries(engine: str) -> dict[str, Link]:
    """Ports that ``engine`` can carry, and how."""
    return _CARRIES[engine]
