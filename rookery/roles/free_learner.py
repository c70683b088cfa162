"""Learners from replay that do not wait for each other, as in Gorila
(https://arxiv.org/abs/1507.04296).

Each takes batches of its own, computes the gradient by a copy of the weights, and applies it to the
weights that all share (:mod:`rookery.params.hogwild`), which the others may have stepped meanwhile.
The first puts the weights there, publishes and saves; the others begin when it has. An update is
counted once, by whichever learner; each moves its own copy of the target network when the count of
all says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rookery.core.update import Update
from rookery.nets.normalizer import moments_in
from rookery.params.hogwild import APPLIED, ENDED, GOING, OVER, HogwildMemory, HogwildOptimizer
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.roles.hogwild import await_ends
from rookery.roles.replay_learner import ReplayLearner
from rookery.runs.checkpoint_files import State


class FreeLearner(ReplayLearner):
    """Number ``worker`` of those around ``memory``."""

    optimizer: HogwildOptimizer

    def __init__(self, *, memory: HogwildMemory, worker: int, **parts: Any) -> None:
        self.memory, self.worker = memory, worker
        super().__init__(**parts)
        if worker:
            self.actor_states = None  # the first one's to restore and to save
        self.moments = moments_in(self.policy)
        self.pools = {
            name: memory.pool(name, tuple(moments.mean.shape), worker)
            for name, moments in self.moments.items()
        }
        for name, pool in self.pools.items():
            self.moments[name].pool = pool
        self._begun = False

    def _optimizer(
        self, config: OptimizerConfig, scales: list[tuple[slice, float]]
    ) -> FlatOptimizer:
        return HogwildOptimizer(config, self.flat, self.memory, self.worker, scales)

    def start(self) -> None:
        """Put the weights there and let the others begin."""
        if self.worker == 0:
            self._put()
            self._begin()

    def _begin(self) -> None:
        self._take()
        super().start()
        self._follow_up(self.updates, self._count_updates())  # the others may have gone ahead
        self._begun = True

    def ready(self) -> bool:
        """Whether there are weights, and a batch to learn from."""
        if not self._begun and self.memory.state == GOING:
            self._begin()
        return self._begun and super().ready()

    def done(self) -> bool:
        """Whether the first has ended."""
        return self.memory.state == OVER

    def finish(self) -> Update | None:
        """End all, and take what they have done."""
        self.memory.ledger[self.worker, ENDED] = 1
        if self.worker:
            return None
        self.memory.state = OVER
        await_ends(self.memory, "learners")
        self.catch_up()
        nothing = np.empty(0)
        return Update(self.steps, self.updates, {}, nothing, nothing.astype(int), {})

    def catch_up(self) -> None:
        """Take what all have done, once they have ended."""
        self._take()
        self._follow_up(self.updates, self._count_updates())

    def _take(self) -> None:
        self.optimizer.pull()
        for name, pool in self.pools.items():
            self.moments[name].take(pool.merged())

    def _put(self) -> None:
        memory = self.memory
        memory.weights.copy_(self.flat.data)
        for name, pool in self.pools.items():
            if self.moments[name].count > 0:
                pool.begin_with(self.moments[name].moments)
        memory.ledger[-1, APPLIED] = self.updates
        memory.state = GOING

    def _publish(self, version: int) -> None:
        if self.worker == 0:
            super()._publish(version)

    def _count_updates(self) -> int:
        return self.memory.total(APPLIED)

    def _report(self, metrics: dict[str, float]) -> Update:
        stale, self.optimizer.staleness = self.optimizer.staleness, []
        return super()._report(metrics | {"staleness": sum(stale) / max(len(stale), 1)})

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint, copied: the others go on while they are written."""
        return super().save_state() | {"optimizer": State(dict(self.optimizer.copied_state()))}

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from a checkpoint; what is shared is the first learner's to restore."""
        if self.worker:
            parts = parts | {"optimizer": State(dict(self.optimizer.state_tensors()))}
        super().load_state(parts)
