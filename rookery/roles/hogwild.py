"""Workers around one set of weights in shared memory, and who keeps the session beside them.

A worker learns from the weights it copied, onto the weights all share. Beside them a
:class:`HogwildSession`, which neither acts nor learns: it puts the first weights there, reads what
the workers report, saves and restores.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from rookery.core.patience import Patience
from rookery.core.ports import BaseRole, Wakeup
from rookery.core.spec import Arrays
from rookery.core.update import Update
from rookery.nets.normalizer import RunningMoments, moments_in
from rookery.nets.policy import Policy
from rookery.params.hogwild import (
    APPLIED,
    ENDED,
    GOING,
    OVER,
    STEPS,
    UPDATES,
    HogwildMemory,
    HogwildOptimizer,
)
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.roles.actor import Actor
from rookery.roles.learner import Learner
from rookery.roles.tally import Tally
from rookery.roles.worker import load_both, save_both
from rookery.runs.checkpoint_files import State
from rookery.transport.reports import Reports

_LOG = logging.getLogger(__name__)

LOOK_SECS = 0.05
"""How often the session looks for reports."""
END_SECS = 10.0
"""How long it waits for the workers' last updates."""


class Sharer(Learner):
    """A learner whose weights, optimizer and statistics are in shared memory."""

    undoes = False
    """The others have seen each of its gradients."""

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

    def __init__(self, *, reports: Reports, **parts: Any) -> None:
        super().__init__(**parts)
        self.reports = reports

    def start(self) -> None:
        """Begin with what is shared."""
        for name in self.shared_moments:
            self._pool(name).go_on()
        self.refresh()
        self.steps, self.updates = self.memory.total(STEPS), self.memory.total(UPDATES)
        assert isinstance(self.optimizer, HogwildOptimizer)
        self.optimizer.pull()
        super().start()

    def step(self) -> Update | None:
        """One update; its number and its steps are those of all workers together."""
        memory = self.memory
        begun = memory.total(STEPS)
        self.steps, self.updates = begun, memory.total(UPDATES)
        update = super().step()
        assert update is not None
        memory.count(self.worker, STEPS, update.steps - begun)
        memory.count(self.worker, UPDATES)
        self._tell(update)
        return update

    def _tell(self, update: Update) -> None:
        assert isinstance(self.optimizer, HogwildOptimizer)
        stale, self.optimizer.staleness = self.optimizer.staleness, []
        ages = {"min": min(stale), "mean": sum(stale) / len(stale), "max": max(stale)}
        metrics = {f"train/staleness_{name}": float(age) for name, age in ages.items()}
        episodes = np.column_stack([update.returns, update.lengths, *update.info.values()])
        self.reports.report(metrics | update.metrics, episodes)


class HogwildWorker(BaseRole):
    """An actor and its learner, which begin when the session has put the first weights there."""

    def __init__(
        self,
        actor: Actor,
        learner: HogwildLearner,
        own: Wakeup,
        *,
        run_seed: int,
        total_steps: int,
        varies: bool,
    ) -> None:
        """``varies``: whether a resumed or replaced worker draws minibatches of its own."""
        self.actor, self.learner, self.own = actor, learner, own
        self.memory = learner.memory
        self.run_seed, self.total_steps, self.varies = run_seed, total_steps, varies
        self._begun = False
        self.memory.ledger[learner.worker, ENDED] = 0

    def ready(self) -> bool:
        """Whether there are weights."""
        if not self._begun and self.memory.state == GOING:
            self._begin()
        return self._begun and not self.actor.left

    def _begin(self) -> None:
        self.learner.start()
        if self.learner.steps and self.varies:  # no minibatch twice
            self.learner.vary(self.run_seed)
        self._begun = True

    def wait(self, timeout_secs: float) -> None:
        """Sleep until there may be weights."""
        self.own.wait(LOOK_SECS)

    def step(self) -> None:
        """Act, and learn from it."""
        while self.actor.ready():
            self.actor.step()
        if not self.actor.left:
            self.learner.step()

    def done(self) -> bool:
        """Whether the session has ended, or all steps are made."""
        memory = self.memory
        return memory.state == OVER or (
            memory.state == GOING and memory.total(STEPS) >= self.total_steps
        )

    def finish(self) -> None:
        """No update comes any more."""
        self.memory.ledger[self.learner.worker, ENDED] = 1

    def save_episodes(self) -> State | None:
        """Where its episodes are, and its own randomness."""
        return save_both(self.actor, self.learner)

    def load_episodes(self, saved: State) -> None:
        """Go on from :meth:`save_episodes`."""
        load_both(self.actor, self.learner, saved)

    def close(self) -> None:
        """Close the environments; who was killed has not come here."""
        self.memory.ledger[self.learner.worker, ENDED] = 1
        self.actor.close()


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


class HogwildSession(BaseRole):
    """Keeps the session of workers that do not wait for each other."""

    def __init__(
        self,
        holder: Holder,
        reports: Reports,
        own: Wakeup,
        *,
        info_keys: tuple[str, ...],
        looks_inside: bool,
    ) -> None:
        """``looks_inside``: keep the weights at hand current, for histograms."""
        self.holder, self.own, self.looks_inside = holder, own, looks_inside
        self.tally = Tally(reports, info_keys, self._counts)

    def _counts(self, told: Arrays) -> tuple[int, int]:
        memory = self.holder.memory
        return memory.total(STEPS), memory.total(UPDATES)

    @property
    def policy(self) -> Policy:
        """The weights that were saved last."""
        return self.holder.policy

    @property
    def steps(self) -> int:
        """Steps of all workers."""
        return self.holder.steps

    @property
    def updates(self) -> int:
        """Updates of all workers."""
        return self.holder.updates

    def start(self) -> None:
        """Let the workers begin."""
        self.holder.start()

    def ready(self) -> bool:
        """Whether an update was reported."""
        return self.tally.waiting()

    def wait(self, timeout_secs: float) -> None:
        """Sleep a moment: workers tell nobody that they reported."""
        self.own.wait(LOOK_SECS)

    def step(self) -> Update | None:
        """All that was reported since, as one update."""
        update = self.tally.take()
        if update is not None:
            self.holder.note(update)
            if self.looks_inside:
                self.holder.refresh()
        return update

    def finish(self) -> Update | None:
        """End all workers, so that the last checkpoint has every step that was made."""
        memory = self.holder.memory
        memory.state = OVER
        await_ends(memory, "workers")
        return self.step()

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint."""
        return self.holder.save_state()

    def save_beside(self) -> dict[str, State]:
        """Nothing lies outside of checkpoints."""
        return {}

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from :meth:`save_state`."""
        self.holder.load_state(parts)


def await_ends(memory: HogwildMemory, who: str) -> None:
    """Wait until all who write to ``memory`` have ended."""
    patience = Patience(END_SECS)
    while not memory.ledger[:-1, ENDED].all():
        if patience.over():
            late = (memory.ledger[:-1, ENDED] == 0).nonzero()[0].tolist()
            _LOG.warning("%s %s did not end within %.0f s", who, late, END_SECS)
            return
        time.sleep(LOOK_SECS / 5)


def moments_of(learner: Learner) -> dict[str, RunningMoments]:
    """The running statistics of a learner's policy and algorithm, by name."""
    return moments_in(learner.policy) | learner.algorithm.moments()
