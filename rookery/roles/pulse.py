"""A role's pulse: where its time goes, and since when it has been inside an environment.

The numbers live in an array that an engine may place in shared memory, so the supervisor sees an
environment that hangs and the learner reports each actor's share of waiting.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rookery.core.spec import Array

ENV_SINCE, ENV_SECS, WAIT_SECS, START = range(4)
SIZE = 4


class Pulse:
    """Timestamps (monotonic, comparable between processes) and sums of seconds."""

    def __init__(self, cells: Array | None = None) -> None:
        self.cells = np.zeros(SIZE, np.float64) if cells is None else cells
        self.cells[:] = 0.0
        self.cells[START] = time.monotonic()

    @contextmanager
    def in_env(self) -> Iterator[None]:
        """Time spent in environment code; others can see since when."""
        started = time.monotonic()
        self.cells[ENV_SINCE] = started
        yield
        self.cells[ENV_SINCE] = 0.0
        self.cells[ENV_SECS] += time.monotonic() - started

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent waiting for others."""
        started = time.monotonic()
        yield
        self.cells[WAIT_SECS] += time.monotonic() - started


def secs_in_env(cells: Array, not_before: float = 0.0) -> float:
    """How long the role has been inside its environment, counted from ``not_before`` on; 0 when it
    is not."""
    since = float(cells[ENV_SINCE])
    return time.monotonic() - max(since, not_before) if since else 0.0


def shares(cells: Array) -> dict[str, float]:
    """Share of the role's life spent in the environment and waiting."""
    life = max(time.monotonic() - float(cells[START]), 1e-9)
    return {"env": float(cells[ENV_SECS]) / life, "wait": float(cells[WAIT_SECS]) / life}
