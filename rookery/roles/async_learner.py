"""A learner that takes rollouts from a queue, whatever version made them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from rookery.core.records import Rollout
from rookery.core.update import Update
from rookery.roles.learner import Learner
from rookery.runs.checkpoint_files import State
from rookery.runs.tensorfile import SavedArrays
from rookery.transport.queue import SEEN, QueueSource

_LOG = logging.getLogger(__name__)
_QUEUE = "queue"


class AsyncLearner(Learner):
    """A learner that knows how old its rollouts are."""

    undoes = False
    """What it has taken out of the queue is in no checkpoint."""

    def __init__(self, *, source: QueueSource, keep_queue: bool = False, **parts: Any) -> None:
        """``keep_queue``: rollouts that wait are saved too; only where nobody puts meanwhile."""
        super().__init__(source=source, **parts)
        self.queue_source, self.keep_queue = source, keep_queue

    def ready(self) -> bool:
        """Take what is there; whether that makes a batch.

        In one thread, what was put in a turn that is left half made is not looked at.
        """
        if self.keep_queue and self.leaving is not None and self.leaving():
            return False
        self.queue_source.gather(self.updates)
        return self.queue_source.can_sample()

    def step(self) -> Update | None:
        """One update; steps that were made but refused are steps of the run all the same."""
        self.steps += self.queue_source.take_refused_steps()
        return super().step()

    def _learn(
        self, rollout: Rollout, leaving: Callable[[], bool] | None
    ) -> dict[str, float] | None:
        lag = self.updates - rollout.version
        told = {"lag_min": lag.min(), "lag_mean": lag.mean(), "lag_max": lag.max()}
        ages = {name: float(age) for name, age in told.items()}
        metrics = super()._learn(rollout, leaving)
        return None if metrics is None else metrics | ages

    def metrics(self) -> dict[str, float]:
        """How many rollouts were put, taken, refused and learned."""
        return self.queue_source.queue.metrics()

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint; the rollouts that wait among them if that was asked for."""
        parts = super().save_state()
        if self.keep_queue:
            arrays: SavedArrays = dict(self.queue_source.queue.arrays(SEEN))
            parts[_QUEUE] = State(arrays)
        return parts

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from :meth:`save_state`."""
        super().load_state(parts)
        if not self.keep_queue or _QUEUE not in parts:
            return
        saved = {name: np.asarray(array) for name, array in parts[_QUEUE].arrays.items()}
        if not self.queue_source.queue.load(saved):
            _LOG.warning("rollouts that waited are left out: they are of other settings")
