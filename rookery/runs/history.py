"""The weights of a run as they were along its training, to look at what it had learned by then.

::

    history = History(run.path / "history", keep=24)
    history.cut(steps)                              # begin: forget what lies beyond a checkpoint
    history.note(wall_secs, steps, weights)         # after each update: writes only now and then

    snapshot = history.nearest(900.0)               # the agent of about 15 minutes
    policy.load_state_dict(snapshot.load())

Training time is cut into spans of equal length, so many that ``keep`` files are enough: when time
runs past the last span, spans double in length and two become one. The first snapshot of each span
stays, and the newest. Which ones stay follows from the files and the clock alone, so a process may
be killed at any moment and the next one goes on. Directory: ``<seconds>-<steps>.safetensors``.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rookery.core.errors import UserError
from rookery.runs.atomic import TEMP_PREFIX, write_atomic
from rookery.runs.tensorfile import (
    DamagedError,
    SavedArrays,
    read_safetensors,
    safetensors_chunks,
)

_log = logging.getLogger(__name__)

SHORTEST_SPAN_SECS = 1.0
_NAME = re.compile(r"(\d+\.\d\d)-(\d{12})\.safetensors")


@dataclass(frozen=True, slots=True, order=True)
class Snapshot:
    """The weights of one moment of a run."""

    steps: int
    wall_secs: float
    """Training time over all sessions."""
    path: Path

    def load(self) -> SavedArrays:
        """The weights."""
        try:
            return read_safetensors(self.path)
        except DamagedError as error:
            raise UserError(
                f"{self.path} is damaged ({error}); remove it and the nearest other is taken"
            ) from error


class History:
    """The snapshots of one run, at most ``keep`` of them (2 or more); 0 keeps none."""

    def __init__(self, directory: Path, keep: int = 24) -> None:
        self.directory = Path(directory)
        self._keep = keep
        self._due = 0.0

    def snapshots(self) -> list[Snapshot]:
        """What there is, the oldest first."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path in self.directory.iterdir():
                match = _NAME.fullmatch(path.name)
                if match:
                    found.append(Snapshot(int(match[2]), float(match[1]), path))
        return sorted(found)

    def nearest(self, wall_secs: float) -> Snapshot:
        """The snapshot nearest to a training time; there must be one."""
        return min(self.snapshots(), key=lambda it: abs(it.wall_secs - wall_secs))

    def cut(self, steps: int) -> None:
        """Forget what lies beyond ``steps``, and what a killed process left half-written."""
        for snapshot in self.snapshots():
            if snapshot.steps > steps:
                snapshot.path.unlink(missing_ok=True)
        for path in self.directory.glob(f"{TEMP_PREFIX}*"):
            path.unlink(missing_ok=True)
        self._due = 0.0

    def note(
        self, wall_secs: float, steps: int, weights: Callable[[], SavedArrays], *, end: bool = False
    ) -> None:
        """Write the weights if their span has none yet; at the ``end`` in any case."""
        if self._keep == 0 or (wall_secs < self._due and not end):
            return
        span = self._span_secs(wall_secs)
        self._due = (wall_secs // span + 1) * span
        there = self.snapshots()
        if any(it.steps == steps for it in there):
            return
        if end or all(it.wall_secs // span != wall_secs // span for it in there):
            self._write(wall_secs, steps, weights)
            self._thin(span)

    def _span_secs(self, wall_secs: float) -> float:
        """Long enough that all spans up to now, and the newest snapshot, are at most ``keep``."""
        span = SHORTEST_SPAN_SECS
        while wall_secs >= span * (self._keep - 1):
            span *= 2
        return span

    def _write(self, wall_secs: float, steps: int, weights: Callable[[], SavedArrays]) -> None:
        path = self.directory / f"{wall_secs:010.2f}-{steps:012d}.safetensors"
        try:
            self.directory.mkdir(exist_ok=True)
            data = b"".join(safetensors_chunks("history", weights()))
            write_atomic(path, data, durable=False)
        except OSError as error:
            # Only pictures are lost; what a run cannot do without is in its checkpoints.
            _log.warning("cannot write %s (%s); the run keeps no history", path, error.strerror)
            self._keep = 0

    def _thin(self, span: float) -> None:
        """Keep the first snapshot of each span, and the newest."""
        seen: set[float] = set()
        for snapshot in self.snapshots()[:-1]:
            place = snapshot.wall_secs // span
            if place in seen:
                snapshot.path.unlink(missing_ok=True)
            seen.add(place)
