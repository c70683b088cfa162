"""What workers that do not wait for each other told, as updates of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from rookery.core.spec import Array, Arrays
from rookery.core.update import Update
from rookery.transport.reports import Reports

WINDOW = 100
"""Means are over this many updates of each worker."""

Counts = Callable[[Arrays], tuple[int, int]]
"""From what was told since the last time, by name, to steps and updates of the run."""


class Tally:
    """Makes one :class:`~rookery.core.update.Update` of what all workers told since the last."""

    def __init__(
        self,
        reports: Reports,
        info_keys: tuple[str, ...],
        counts: Counts,
        *,
        window: int = WINDOW,
    ) -> None:
        """``window``: of how many updates of each worker means are made."""
        self.reports, self.info_keys, self.counts = reports, info_keys, counts
        self.recent: deque[Array] = deque(maxlen=window * reports.num_workers)
        self.episodes: list[Array] = []
        """Of the update that is being told."""

    def waiting(self) -> bool:
        """Whether an update was told; episodes are taken as they come.

        A worker tells those first, and waits if there are more than its ring holds.
        """
        self.episodes.append(self.reports.episodes.take())
        return bool((self.reports.updates.written > self.reports.updates.read).any())

    def take(self) -> Update | None:
        """None if no update was told."""
        rows = self.reports.updates.take()
        self.episodes.append(self.reports.episodes.take())
        if not len(rows):
            return None
        self.recent.extend(rows)
        episodes = np.concatenate(self.episodes)
        self.episodes.clear()
        info = episodes[:, 2 : 2 + len(self.info_keys)].T
        steps, updates = self.counts(dict(zip(self.reports.names(), rows.T, strict=False)))
        return Update(
            steps=steps,
            updates=updates,
            metrics=self._metrics(),
            returns=episodes[:, 0],
            lengths=episodes[:, 1].astype(np.int64),
            info=dict(zip(self.info_keys, info, strict=True)),
        )

    def _metrics(self) -> dict[str, float]:
        """Means over the last updates; of staleness also the least and the most."""
        recent = np.stack(self.recent)
        over = {"train/staleness_min": np.min, "train/staleness_max": np.max}
        return {
            name: float(over.get(name, np.mean)(recent[:, place]))
            for place, name in enumerate(self.reports.names())
            if name.startswith("train/")
        }
