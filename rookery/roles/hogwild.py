"""Learners around one set of weights in shared memory (formation ``hogwild``).

A worker's loop::

    learner.start()
    while memory.state == GOING:
        while actor.ready():
            actor.step()
        learner.step()          # from the weights it copied, onto the weights all share

Beside them a :class:`Holder`, which holds what they share as a learner would, saves and restores
it; and a :class:`Tally`, which hears what they tell.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from rookery.core.spec import Array
from rookery.nets.normalizer import RunningMoments, moments_in
from rookery.params.hogwild import APPLIED, GOING, STEPS, UPDATES, HogwildMemory, HogwildOptimizer
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.roles.learner import Learner, Update
from rookery.runs.checkpoint_files import State
from rookery.transport.ring import Rings

WINDOW = 100
"""Means are over this many updates of each worker."""
MOST_METRICS = 48


class Sharer(Learner):
    """A learner whose weights, optimizer and statistics are in shared memory."""

    def __init__(self, *, memory: HogwildMemory, worker: int, **parts: Any) -> None:
        self.memory, self.worker = memory, worker
        super().__init__(**parts)
        self.shared_moments = moments_of(self)
        for name, moments in self.shared_moments.items():
            moments.pool = memory.pool(name, tuple(moments.mean.shape), worker)

    def _optimizer(self, config: OptimizerConfig) -> FlatOptimizer:
        return HogwildOptimizer(config, self.flat, self.memory, self.worker)

    def refresh(self) -> None:
        """Copy what is shared."""
        self.flat.data.copy_(self.memory.weights)
        self.flat.grad.copy_(self.memory.gradient)
        for name, moments in self.shared_moments.items():
            moments.take(self._pool(name).merged())

    def _pool(self, name: str) -> Any:
        return self.shared_moments[name].pool


class HogwildLearner(Sharer):
    """A worker's learner."""

    def __init__(self, *, rings: HogwildRings, **parts: Any) -> None:
        super().__init__(**parts)
        self.rings = rings
        self.told_names = False

    def start(self) -> None:
        """Begin with what is shared."""
        self.refresh()
        self.steps, self.updates = self.memory.total(STEPS), self.memory.total(UPDATES)
        assert isinstance(self.optimizer, HogwildOptimizer)
        self.optimizer.pull()
        super().start()

    def step(self) -> Update:
        """One update; its number and its steps are those of all workers together."""
        memory = self.memory
        begun = memory.total(STEPS)
        self.steps, self.updates = begun, memory.total(UPDATES)
        update = super().step()
        memory.count(self.worker, STEPS, update.steps - begun)
        memory.count(self.worker, UPDATES)
        self._tell(update)
        return update

    def _tell(self, update: Update) -> None:
        assert isinstance(self.optimizer, HogwildOptimizer)
        if not self.told_names:
            self.told_names = True
            self.memory.tell_names(list(update.metrics))
        for row in np.column_stack([update.returns, update.lengths, *update.info.values()]):
            self.rings.episodes.push(self.worker, row)
        stale, self.optimizer.staleness = self.optimizer.staleness, []
        row = [min(stale), sum(stale) / len(stale), max(stale), *update.metrics.values()]
        self.rings.updates.push(self.worker, np.array(row))


class HogwildRings:
    """What workers tell: each update, each episode."""

    def __init__(self, updates: Rings, episodes: Rings) -> None:
        self.updates, self.episodes = updates, episodes


class Holder(Sharer):
    """Holds what the workers share: puts it there at the start, saves it, goes on from it."""

    def start(self) -> None:
        """Put the weights and statistics there; the workers may begin."""
        memory = self.memory
        memory.weights.copy_(self.flat.data)
        memory.spread_statistics()
        for name, moments in self.shared_moments.items():
            if moments.count > 0:
                self._pool(name).write(moments.moments)
        memory.ledger[-1, STEPS], memory.ledger[-1, UPDATES] = self.steps, self.updates
        memory.ledger[-1, APPLIED] = int(self.optimizer.state["step"])
        memory.state = GOING

    def note(self, update: Update) -> None:
        """What is saved from now on is said to be of this update."""
        self.steps, self.updates = update.steps, update.updates

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint, as they are just now."""
        self.refresh()
        self.optimizer.state["step"].fill_(self.memory.total(APPLIED))
        assert isinstance(self.optimizer, HogwildOptimizer)
        return super().save_state() | {"optimizer": State(dict(self.optimizer.copied_state()))}


class Tally:
    """Makes one :class:`Update` of what all workers told since the last."""

    def __init__(self, memory: HogwildMemory, rings: HogwildRings, info_keys: tuple[str, ...]):
        self.memory, self.rings, self.info_keys = memory, rings, info_keys
        self.recent: deque[Array] = deque(maxlen=WINDOW * memory.num_workers)
        self.episodes: list[Array] = []
        """Of the update that is being told."""

    def take(self) -> Update | None:
        """None if no update was told."""
        rows = self.rings.updates.take()
        # A worker tells its episodes first, and waits if there are more than its ring holds.
        self.episodes.append(self.rings.episodes.take())
        if not len(rows):
            return None
        self.recent.extend(rows)
        episodes = np.concatenate(self.episodes)
        self.episodes.clear()
        info = episodes[:, 2 : 2 + len(self.info_keys)].T
        return Update(
            steps=self.memory.total(STEPS),
            updates=self.memory.total(UPDATES),
            metrics=self._metrics(),
            returns=episodes[:, 0],
            lengths=episodes[:, 1].astype(np.int64),
            info=dict(zip(self.info_keys, info, strict=True)),
        )

    def _metrics(self) -> dict[str, float]:
        recent, names = np.stack(self.recent), self.memory.names()
        return {
            "train/staleness_min": float(recent[:, 0].min()),
            "train/staleness_mean": float(recent[:, 1].mean()),
            "train/staleness_max": float(recent[:, 2].max()),
            **{name: float(recent[:, 3 + place].mean()) for place, name in enumerate(names)},
        }


def moments_of(learner: Learner) -> dict[str, RunningMoments]:
    """The running statistics of a learner's policy and algorithm, by name."""
    return moments_in(learner.policy) | learner.algorithm.moments()
