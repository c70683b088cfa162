"""How each replica does: its heartbeat, and numbers that it tells of itself.

Shapes: R replicas of one role, M numbers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rookery.core import heartbeat
from rookery.core.ports import End, Kind
from rookery.core.spec import Array, Arrays, ArraySpec

TELL_SECS = 0.5
"""How often a role's numbers are told."""


class VitalsWriter:
    """One replica's end."""

    def __init__(self, arrays: Arrays, replica: int) -> None:
        self.cells: Array = arrays["cells"][replica]
        self.numbers: Array = arrays["numbers"][replica]
        self._told = 0.0

    def tell(self, numbers: list[float]) -> None:
        """Replace the numbers told before."""
        self.numbers[: len(numbers)] = numbers

    def due(self) -> bool:
        """Whether it is time to tell again."""
        moment = time.monotonic()
        if moment - self._told < TELL_SECS:
            return False
        self._told = moment
        return True


class VitalsReader:
    """The vitals of all replicas of a role."""

    def __init__(self, arrays: Arrays, names: tuple[str, ...]) -> None:
        self.cells, self._numbers, self.names = arrays["cells"], arrays["numbers"], names

    def alive(self) -> dict[int, Array]:
        """The cells of those that have begun, by replica."""
        return {
            replica: cells for replica, cells in enumerate(self.cells) if cells[heartbeat.START]
        }

    def numbers(self, replica: int = 0) -> dict[str, float]:
        """What ``replica`` told, by name."""
        return dict(zip(self.names, self._numbers[replica].tolist(), strict=False))


@dataclass(frozen=True)
class VitalsPort:
    """Heartbeats and numbers of a role's replicas, for who keeps the session and who supervises."""

    name: ClassVar[str] = "vitals"
    kind: ClassVar[Kind] = "cell"
    about: ClassVar[str] = "heartbeat, where the time goes, and numbers for the metrics"

    replicas: int
    names: tuple[str, ...] = ()

    def traffic(self) -> tuple[int, str]:
        """A replica's row."""
        return heartbeat.SIZE * 8 + len(self.names) * 8, "second"

    def layout(self) -> dict[str, ArraySpec]:
        """A row a replica."""
        real = np.dtype(np.float64)
        return {
            "cells": ArraySpec((self.replicas, heartbeat.SIZE), real),
            "numbers": ArraySpec((self.replicas, max(len(self.names), 1)), real),
        }

    def client(self, end: End) -> VitalsWriter:
        """A replica's end."""
        return VitalsWriter(end.arrays, end.replica)

    def server(self, end: End) -> VitalsReader:
        """Who reads."""
        return VitalsReader(end.arrays, self.names)

    def for_one(self, client: int) -> VitalsPort:
        """With one replica."""
        return replace(self, replicas=1)

    def client_relay(self, arrays: Arrays) -> VitalsSender:
        """Beside a replica."""
        return VitalsSender(VitalsWriter(arrays, 0))

    def server_relay(self, end: End) -> VitalsReceiver:
        """In the place of a replica."""
        return VitalsReceiver(VitalsWriter(end.arrays, end.replica))


_STAMPS = (heartbeat.ENV_SINCE, heartbeat.START, heartbeat.ALIVE)
"""Moments by this machine's clock; another's is another."""


class VitalsSender:
    """Sends a replica's row about once a second, moments as ages."""

    def __init__(self, writer: VitalsWriter) -> None:
        self.writer, self.sent = writer, 0.0
        self.sends = _row(writer)
        self.receives: dict[str, ArraySpec] = {}

    def next(self) -> Arrays | None:
        """The row, if it is time."""
        moment, cells = time.monotonic(), self.writer.cells.copy()
        if moment - self.sent < heartbeat.TICK_SECS or not cells[heartbeat.START]:
            return None
        self.sent = moment
        for stamp in _STAMPS:
            cells[stamp] = moment - cells[stamp] if cells[stamp] else -1.0
        return {"cells": cells, "numbers": self.writer.numbers}

    def accept(self, frame: Arrays) -> None:
        """Nothing comes back."""


class VitalsReceiver:
    """Writes the row of another host's replica by this machine's clock.

    Whoever had this place before is forgotten: it may have died in its environment.
    """

    def __init__(self, writer: VitalsWriter) -> None:
        self.writer = writer
        writer.cells[:], writer.numbers[:] = 0.0, 0.0
        self.receives = _row(writer)
        self.sends: dict[str, ArraySpec] = {}

    def next(self) -> Arrays | None:
        """Nothing goes back."""
        return None

    def accept(self, frame: Arrays) -> None:
        """A newer row."""
        moment, cells = time.monotonic(), np.array(frame["cells"])
        for stamp in _STAMPS:
            cells[stamp] = moment - cells[stamp] if cells[stamp] >= 0 else 0.0
        cells[heartbeat.ALIVE] = moment
        self.writer.cells[:] = cells
        self.writer.numbers[:] = frame["numbers"]


def _row(writer: VitalsWriter) -> dict[str, ArraySpec]:
    real = np.dtype(np.float64)
    return {
        "cells": ArraySpec(writer.cells.shape, real),
        "numbers": ArraySpec(writer.numbers.shape, real),
    }
