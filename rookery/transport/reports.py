"""What hogwild workers report: each update, and each episode that ended.

A worker reports the episodes of an update first, then the update, so that who reads an update has
its episodes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rookery.core.ports import End, Kind
from rookery.core.spec import Array, Arrays, ArraySpec, under
from rookery.transport.local_port import LocalPort
from rookery.transport.ring import Rings, ring_specs

UPDATES_KEPT, EPISODES_KEPT = 1024, 4096
"""Of each worker, until they are read, many times a second."""
MOST_METRICS = 48
_NAMES_BYTES = 4096


class Reports:
    """Both ends: workers report, the session reads."""

    def __init__(self, arrays: Arrays, worker: int) -> None:
        self.worker, self._names = worker, arrays["names"]
        self.updates, self.episodes = (
            Rings(under("updates/", arrays)),
            Rings(under("episodes/", arrays)),
        )
        self._told_names = False

    @property
    def num_workers(self) -> int:
        """How many report."""
        return len(self.updates.rows)

    def report(self, metrics: dict[str, float], episodes: Array) -> None:
        """One update; its ``episodes`` ``[E, W]`` first."""
        if not self._told_names:  # every worker's are the same
            self._told_names = True
            text = json.dumps(list(metrics)).encode()
            self._names[: len(text)] = np.frombuffer(text, np.uint8)
        for row in episodes:
            self.episodes.push(self.worker, row)
        self.updates.push(self.worker, np.array(list(metrics.values())))

    def names(self) -> list[str]:
        """What the numbers of an update are called."""
        text = bytes(self._names).rstrip(b"\0")
        names: list[str] = json.loads(text) if text else []
        return names


@dataclass(frozen=True)
class ReportsPort(LocalPort):
    """Updates and episodes of workers, for who keeps the session."""

    name: ClassVar[str] = "reports"
    kind: ClassVar[Kind] = "memory"
    about: ClassVar[str] = "what each update did, and the episodes that ended"

    num_workers: int
    episode_width: int

    def traffic(self) -> tuple[int, str]:
        """One update's numbers."""
        return MOST_METRICS * 8, "update"

    def layout(self) -> dict[str, ArraySpec]:
        """Rings of all workers."""
        updates = ring_specs(self.num_workers, UPDATES_KEPT, MOST_METRICS)
        episodes = ring_specs(self.num_workers, EPISODES_KEPT, self.episode_width)
        return {
            "names": ArraySpec((_NAMES_BYTES,), np.dtype(np.uint8)),
            **{f"updates/{name}": spec for name, spec in updates.items()},
            **{f"episodes/{name}": spec for name, spec in episodes.items()},
        }

    def client(self, end: End) -> Reports:
        """A worker's end."""
        return Reports(end.arrays, end.replica)

    def server(self, end: End) -> Reports:
        """The session's end."""
        return Reports(end.arrays, 0)
