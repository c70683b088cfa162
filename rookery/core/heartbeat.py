"""A role's heartbeat: where its time goes, and since when it has been inside an environment.

The numbers live in an array that an engine may place in shared memory, so whoever supervises sees
an environment that hangs, and metrics tell each role's share of waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from rookery.core.spec import Array

ENV_SINCE, ENV_SECS, WAIT_SECS, START, ALIVE, DONE = range(6)
SIZE = 8
"""A cache line: every process writes its own at every step."""
TICK_SECS = 1.0


class Heartbeat:
    """Timestamps (monotonic, comparable between processes) and sums of seconds."""

    def __init__(self, cells: Array | None = None, tick: Callable[[], None] = lambda: None) -> None:
        """``tick`` is called about once a second while environments are stepped."""
        self.cells = np.zeros(SIZE, np.float64) if cells is None else cells
        self.cells[:] = 0.0
        self.cells[START] = self.cells[ALIVE] = time.monotonic()
        self.tick = tick
        self.watcher: Callable[[], None] = lambda: None
        """Called as work progresses, for who has no turn of its own meanwhile."""

    @contextmanager
    def in_env(self) -> Iterator[None]:
        """Time spent in environment code; others can see since when."""
        started = time.monotonic()
        if started - self.cells[ALIVE] > TICK_SECS:
            self.cells[ALIVE] = started
            self.tick()
        self.cells[ENV_SINCE] = started
        yield
        self.cells[ENV_SINCE] = 0.0
        self.cells[ENV_SECS] += time.monotonic() - started

    def progress(self, done: int) -> None:
        """So much of the work in hand is done, in its own units; others can see it."""
        self.cells[DONE] = done
        self.watcher()

    def rest(self) -> None:
        """No work is in hand."""
        self.cells[DONE] = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent waiting for others."""
        started = time.monotonic()
        yield
        self.waited(time.monotonic() - started)

    def waited(self, secs: float) -> None:
        """Others had their turn for ``secs``."""
        self.cells[WAIT_SECS] += secs


def secs_in_env(cells: Array, not_before: float = 0.0) -> float:
    """How long the role has been inside its environment, counted from ``not_before`` on; 0 when it
    is not."""
    since = float(cells[ENV_SINCE])
    return time.monotonic() - max(since, not_before) if since else 0.0


def shares(cells: Array) -> dict[str, float]:
    """Share of the role's life spent in the environment and waiting."""
    life = max(time.monotonic() - float(cells[START]), 1e-9)
    return {"env": float(cells[ENV_SECS]) / life, "wait": float(cells[WAIT_SECS]) / life}
