"""CartPole that counts its steps in files, of which SIGKILL takes none."""

from __future__ import annotations

import mmap
import struct
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from setproctitle import getproctitle

from rookery.replay.store import ReplayStore
from rookery.runs.directory import RunDirectory
from rookery.runs.metrics import read_metrics

_COUNT = struct.Struct("<q")
MOST_STEPS = 500


class Counted(CartPoleEnv):
    """Sleeps ``step_secs`` in every step, and counts it in a file of its own in ``counts``."""

    def __init__(self, counts: str, step_secs: float = 0.0) -> None:
        super().__init__()
        self.directory, self.step_secs = Path(counts), step_secs
        self._count = 0
        self._written: mmap.mmap | None = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._written is None:  # most that are made are only asked what they show
            role = getproctitle().split()[1]
            with (self.directory / f"{role}-{uuid.uuid4().hex}").open("w+b") as file:
                file.truncate(_COUNT.size)
                self._written = mmap.mmap(file.fileno(), _COUNT.size)
        self._count += 1
        _COUNT.pack_into(self._written, 0, self._count)
        time.sleep(self.step_secs)
        return super().step(action)


def make_env(**given: Any) -> TimeLimit[Any, Any]:
    return TimeLimit(Counted(**given), MOST_STEPS)


class Accounts(NamedTuple):
    """What has become of all steps."""

    made: int
    """By environments."""
    counted: int
    """By replay, and so in the metrics."""
    lives: int
    """Environments that have made some."""


MOST_AHEAD_STEPS = 200
MOST_LOST_STEPS = 10
"""Of one environment's in flight: its ring here and at the host, and the one under way."""


def accounted(run: Path, counts: Path, *, at_least: int) -> Accounts:
    """What has become of the steps of a run that has ended with a checkpoint.

    What replay counted is what the metrics say, and what was made but for what was in flight when
    somebody ended; nothing that is in replay, of ``at_least`` so many steps, is there twice.
    """
    store = ReplayStore(RunDirectory.open(run).replay)
    arrays, _, data = store.load(store.available()[-1])
    written = [record["steps"] for record in read_metrics(run / "metrics.jsonl")]
    assert written == sorted(written)
    assert written[-1] == store.available()[-1]
    assert 0 <= data["steps"] - written[-1] <= MOST_AHEAD_STEPS, "taken since the last batch"
    each = [_COUNT.unpack(path.read_bytes())[0] for path in counts.glob("actor-*")]
    found = Accounts(sum(each), data["steps"], len(each))
    assert 0 <= found.made - found.counted <= found.lives * MOST_LOST_STEPS, found
    rows = np.concatenate(
        [array for name, array in arrays.items() if name.endswith("/obs/obs/rows")]
    )
    rows = rows[rows.any(axis=1)]  # the others were not written yet
    assert len(rows) >= at_least
    assert len(np.unique(rows, axis=0)) == len(rows), "no two episodes are alike"
    return found
