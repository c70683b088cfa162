"""What workers report: each update, and each episode that ended.

A worker reports the episodes of an update first, then the update, so that who reads an update has
its episodes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rookery.core.ports import End, Kind
from rookery.core.spec import Array, Arrays, ArraySpec, under
from rookery.transport.ring import Rings, ring_specs

UPDATES_KEPT, EPISODES_KEPT = 1024, 4096
"""Of each worker, until they are read, many times a second."""
MOST_METRICS = 48
_NAMES_BYTES = 4096
_MOST_COUNTED = 2.0**53


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
            self.set_names(json.dumps(list(metrics)).encode())
        for row in episodes:
            self.episodes.push(self.worker, row)
        self.updates.push(self.worker, np.array(list(metrics.values())))

    def can_report(self, num_episodes: int) -> bool:
        """Whether an update with so many episodes can be reported without a wait."""
        worker = self.worker
        return self.updates.room(worker) > 0 and self.episodes.room(worker) >= num_episodes

    def names(self) -> list[str]:
        """What the numbers of an update are called."""
        text = self.written_names()
        names: list[str] = json.loads(text) if text else []
        return names

    def written_names(self) -> bytes:
        """The same as they are written."""
        return bytes(self._names).rstrip(b"\0")

    def set_names(self, text: bytes) -> None:
        """Write them."""
        self._names[: len(text)] = np.frombuffer(text, np.uint8)


@dataclass(frozen=True)
class ReportsPort:
    """Updates and episodes of workers, for who keeps the session."""

    name: ClassVar[str] = "reports"
    kind: ClassVar[Kind] = "stream"
    about: ClassVar[str] = "what each update did, and the episodes that ended"

    num_workers: int
    episode_width: int
    episodes_kept: int | None = None
    """Of each worker; None: :data:`EPISODES_KEPT`."""
    counts: tuple[str, ...] = ()
    """Names of the first numbers of an update, which count something."""

    def traffic(self) -> tuple[int, str]:
        """One update's numbers."""
        return MOST_METRICS * 8, "update"

    def layout(self) -> dict[str, ArraySpec]:
        """Rings of all workers."""
        updates = ring_specs(self.num_workers, UPDATES_KEPT, MOST_METRICS)
        kept = self.episodes_kept or EPISODES_KEPT
        episodes = ring_specs(self.num_workers, kept, self.episode_width)
        return {
            "names": ArraySpec((_NAMES_BYTES,), np.dtype(np.uint8)),
            **{f"updates/{name}": spec for name, spec in updates.items()},
            **{f"episodes/{name}": spec for name, spec in episodes.items()},
        }

    def row_specs(self) -> dict[str, ArraySpec]:
        """What goes from worker to session: the names, once, and one row of either kind."""
        real = np.dtype(np.float64)
        return {
            "names": ArraySpec((_NAMES_BYTES,), np.dtype(np.uint8)),
            "episode": ArraySpec((self.episode_width,), real),
            "update": ArraySpec((MOST_METRICS,), real),
        }

    def client(self, end: End) -> Reports:
        """A worker's end."""
        return Reports(end.arrays, end.replica)

    def server(self, end: End) -> Reports:
        """The session's end."""
        return Reports(end.arrays, 0)

    def for_one(self, client: int) -> ReportsPort:
        """With one worker."""
        return replace(self, num_workers=1)

    def client_relay(self, arrays: Arrays) -> ReportsSender:
        """Beside a worker."""
        return ReportsSender(Reports(arrays, 0), self.row_specs())

    def server_relay(self, end: End) -> ReportsReceiver:
        """In the place of a worker."""
        return ReportsReceiver(self.client(end), self.row_specs(), self.counts)


_READ = {"read": ArraySpec((2,), np.dtype(np.int64))}
"""Episodes and updates that the session has read of those that were sent."""


class ReportsSender:
    """Sends what a worker reports, as much as the other side has room for."""

    def __init__(self, reports: Reports, specs: Mapping[str, ArraySpec]) -> None:
        self.reports = reports
        self.rings = {"episode": reports.episodes, "update": reports.updates}
        self.sent = dict.fromkeys(self.rings, 0)
        # Nothing is sent before the other side has told what there is room for.
        self.read = {name: -ring.capacity for name, ring in self.rings.items()}
        self.told_names = False
        self.sends, self.receives = specs, _READ

    def next(self) -> Arrays | None:
        """The names, then episodes before the updates that were reported after them."""
        text = self.reports.written_names()
        if text and not self.told_names:
            self.told_names = True
            return {"names": np.frombuffer(text.ljust(_NAMES_BYTES, b"\0"), np.uint8)}
        updates = int(self.reports.updates.written[0])  # before the episodes are looked at
        for name, ring in self.rings.items():
            room = self.sent[name] - self.read[name] < ring.capacity
            if name == "update" and ring.read[0] == updates:
                return None
            if room and (row := ring.take_one(0)) is not None:
                self.sent[name] += 1
                return {name: row}
            if not ring.empty(0):
                return None  # an update goes behind its episodes
        return None

    def accept(self, frame: Arrays) -> None:
        """How many were read."""
        self.read = dict(zip(self.rings, map(int, frame["read"]), strict=True))


class ReportsReceiver:
    """Reports what another host's worker sent, and tells how much of it was read."""

    def __init__(
        self, reports: Reports, specs: Mapping[str, ArraySpec], counts: tuple[str, ...]
    ) -> None:
        self.reports, self.counts = reports, counts
        self.rings = {"episode": reports.episodes, "update": reports.updates}
        self.begun = {name: int(ring.written[reports.worker]) for name, ring in self.rings.items()}
        self.told: list[int] = []
        self.sends, self.receives = _READ, specs

    def next(self) -> Arrays | None:
        """How many were read, at first and when there are more. Those that another worker has left
        count against it: less than none were read."""
        worker = self.reports.worker
        read = [int(ring.read[worker]) - self.begun[name] for name, ring in self.rings.items()]
        if read == self.told:
            return None
        self.told = read
        return {"read": np.array(read)}

    def accept(self, frame: Arrays) -> None:
        """Names, or a row."""
        worker = self.reports.worker
        if "names" in frame:
            text = bytes(frame["names"]).rstrip(b"\0")
            self._check_names(text)
            if not self.reports.written_names():
                self.reports.set_names(text)
            return
        if "update" in frame:
            counts = frame["update"][: len(self.counts)]
            if not ((counts >= 0) & (counts < _MOST_COUNTED)).all():
                raise ValueError(f"counts that are none: {counts.tolist()}")
        for name, ring in self.rings.items():
            if name in frame:
                if not ring.room(worker):
                    raise RuntimeError(f"worker-{worker} reports more than there is room for")
                ring.push(worker, frame[name])

    def _check_names(self, text: bytes) -> None:
        """Refuse what the session could not read."""
        names = json.loads(text)
        known = isinstance(names, list) and all(isinstance(name, str) for name in names)
        begun = known and tuple(names[: len(self.counts)]) == self.counts
        if not begun or len(names) > MOST_METRICS:
            raise ValueError("names that are none")
