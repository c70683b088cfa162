"""Where the head of a run listens, left in the run directory for hosts that see it.

The token is beside it, in a file of its own: this one is no secret.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rookery.runs.atomic import write_atomic, writing

FILE_NAME = "address.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAddress:
    """By what a host finds the head, and knows it."""

    address: str
    fingerprint: str | None = None
    """Of its certificate; None where it shows none."""


def write_head_address(run: Path, found: HeadAddress) -> None:
    """Leave it in ``run``."""
    path = run / FILE_NAME
    with writing(path):
        write_atomic(path, (json.dumps(asdict(found)) + "\n").encode())


def read_head_address(run: Path) -> HeadAddress | None:
    """What :func:`write_head_address` left; None where no head listens."""
    try:
        data = json.loads((run / FILE_NAME).read_bytes())
        return HeadAddress(address=data["address"], fingerprint=data["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_head_address(run: Path) -> None:
    """The head listens no more."""
    (run / FILE_NAME).unlink(missing_ok=True)
