"""Workers that push their gradients to parameter servers and pull the weights.

An update pauses after each gradient until all servers have answered, so that roles which share a
thread can take turns.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import RunFailed
from rookery.core.ports import BaseRole, Wakeup
from rookery.core.records import Rollout
from rookery.core.spec import Arrays
from rookery.core.update import Update
from rookery.nets.normalizer import Moments, RunningMoments, moments_in, moments_of
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.roles.actor import Actor
from rookery.roles.learner import Learner
from rookery.roles.parameter_server import parts_of
from rookery.roles.worker import load_both, save_both
from rookery.runs.checkpoint_files import State
from rookery.transport.reports import Reports
from rookery.transport.shards import APPLIED, PULLED, REFUSED, Answer, ShardClient

REPORTED_COUNTS = STEPS, VERSION, GRADIENTS = "steps", "version", "gradients"
"""What an update says beside its metrics: steps of the worker; steps of the first server's
optimizer; gradients that the update pushed."""


class SharedMoments:
    """A worker's view of statistics that a server adds up (a
    :class:`~rookery.nets.normalizer.Pool`).

    What the worker adds counts for itself at once, and goes to the server with its next question.
    """

    def __init__(self, shape: torch.Size) -> None:
        self.all = RunningMoments(tuple(shape))
        self.own: Moments | None = None
        """Of samples that no server has been told of."""

    def add(self, samples: Tensor) -> Moments:
        """Add samples of this worker; those of all, as far as it knows."""
        batch = moments_of(samples.cpu(), self.all.mean.shape)
        if batch is not None:
            self.own = batch if self.own is None else self.own.merged(batch)
            self.all.take(self.all.moments.merged(batch))
        return self.all.moments

    def told(self) -> Tensor:
        """``own`` in a row, which is the server's to add from now on."""
        own = self.own or Moments(*(torch.zeros_like(part) for part in self.all.moments))
        self.own = None
        return own.packed()

    def take(self, row: Tensor) -> None:
        """Those of all workers."""
        self.all.take(Moments.unpacked(row, self.all.mean.shape))


class RemoteWeights:
    """Weights that several servers keep a part of each, as one vector.

    ::

        weights.pull()
        ...
        if weights.arrived():               # all servers have answered
            weights.take()
            weights.push(lr, weight)
    """

    def __init__(
        self,
        clients: list[ShardClient],
        flat: FlatParams,
        moments: dict[str, RunningMoments],
    ) -> None:
        self.flat, self.moments = flat, moments
        self.parts = parts_of(len(flat.data), len(clients))
        self.clients = [
            client.of_length(part.stop - part.start)
            for client, part in zip(clients, self.parts, strict=True)
        ]
        self.pools = {name: SharedMoments(each.mean.shape) for name, each in moments.items()}
        for name, pool in self.pools.items():
            moments[name].pool = pool
        self.asked: set[int] = set()
        """The servers whose answers were not taken."""
        self.answers: list[Answer] = []
        """To gradients, since :meth:`begin`."""
        self.gradients = 0
        self.steps = 0
        """Of the run, as the first server told."""

    @property
    def version(self) -> int:
        """Steps of the first server's optimizer."""
        return self.clients[0].version

    def begin(self, num_steps: int) -> None:
        """An update begins, of a rollout of so many steps."""
        self.answers.clear()
        self.gradients = 0
        self.clients[0].count_steps(num_steps)
        for client in self.clients:
            client.begin()

    def end(self) -> None:
        """It is made."""
        for client in self.clients:
            client.end_update()

    def pull(self) -> None:
        """Ask for the newest weights."""
        for number, client in enumerate(self.clients):
            self.asked.add(number)
            client.pull()

    def push(self, lr: float, weight: float) -> None:
        """Ask for the weights that the gradient makes."""
        self.gradients += 1
        for number, (client, part) in enumerate(zip(self.clients, self.parts, strict=True)):
            self.asked.add(number)
            gradient = self.flat.grad[part]
            client.push(gradient, lr=lr, weight=weight, moments=self._told(number))

    def tell(self) -> bool:
        """Bring statistics, if there are some that the first server does not have."""
        if all(pool.own is None for pool in self.pools.values()):
            return False
        self.asked.add(0)
        self.clients[0].pull(self._told(0))
        return True

    def _told(self, server: int) -> Arrays | None:
        if server or all(pool.own is None for pool in self.pools.values()):
            return None
        return {name: pool.told().numpy() for name, pool in self.pools.items()}

    def arrived(self) -> bool:
        """Whether all have answered; whoever has lost a question is asked for its weights."""
        for number in self.asked:
            if self.clients[number].lost():
                self.clients[number].pull()
        return not any(self.clients[number].waits() for number in self.asked)

    @torch.no_grad()
    def take(self) -> bool:
        """Take the weights; False if a server has died meanwhile, so that it must be asked anew."""
        for number in sorted(self.asked):
            answer = self.clients[number].take(self.flat.data[self.parts[number]])
            if answer is None:
                return False
            self.asked.remove(number)
            self._note(number, answer)
        return True

    def _note(self, number: int, answer: Answer) -> None:
        if answer.outcome != PULLED:
            self.answers.append(answer)
        if answer.outcome == REFUSED:
            raise RunFailed("a server refused a gradient that was not finite; lower --lr")
        if number == 0:
            self.steps = answer.steps
            for name, row in self.clients[0].shared_moments().items():
                self.pools[name].take(row)
                self.moments[name].take(self.pools[name].all.moments)

    def metrics(self) -> dict[str, float]:
        """How old the gradients of the update were, and how many came too late."""
        ages = [float(answer.staleness) for answer in self.answers] or [0.0]
        late = [float(answer.outcome != APPLIED) for answer in self.answers] or [0.0]
        return {
            "train/staleness_min": min(ages),
            "train/staleness_mean": sum(ages) / len(ages),
            "train/staleness_max": max(ages),
            "train/late_gradients": sum(late) / len(late),
        }


class NoOptimizer(FlatOptimizer):
    """Where servers have the statistics: only clips."""

    def __init__(self, config: OptimizerConfig, params: FlatParams) -> None:
        self.config, self.params, self.lr_scales = config, params, []
        self.state = {}

    def clip(self) -> Tensor:
        """Clip the gradient; its norm before."""
        return self._clip()


class PushingLearner(Learner):
    """A worker's learner; each :meth:`step` goes as far as the servers have answered."""

    undoes = False
    """The servers have used each of its gradients."""

    optimizer: NoOptimizer

    def __init__(self, *, clients: list[ShardClient], **parts: Any) -> None:
        super().__init__(**parts)
        named = moments_in(self.policy) | self.algorithm.moments()
        self.weights = RemoteWeights(clients, self.flat, named)
        self.num_steps = 0
        """Of the rollout that was learned from last."""
        self._learned: Rollout | None = None
        self._under_way: Generator[None, None, dict[str, float]] | None = None
        self._metrics: dict[str, float] | None = None

    def _optimizer(self, config: OptimizerConfig) -> FlatOptimizer:
        return NoOptimizer(config, self.flat)

    @property
    def under_way(self) -> bool:
        """Whether it is in the middle of an update."""
        return self._learned is not None

    def take(self) -> bool:
        """Take the weights that were asked for; whether it can go on."""
        if not self.weights.asked:
            return True
        if not self.weights.arrived() or not self.weights.take():
            return False
        self.policy.refreshed()
        return True

    def step(self) -> Update | None:
        """Learn on, call after :meth:`take`; None unless the update is whole now."""
        if self._learned is None:
            self._learned = self.source.sample()
            self.steps, self.num_steps = self.weights.steps, self._learned.num_steps
            self.weights.begin(self.num_steps)
            self._under_way = self._learning(self._learned)
        if self._metrics is None:
            assert self._under_way is not None
            try:
                next(self._under_way)
            except StopIteration as end:
                self._metrics = end.value
            else:
                return None
            if self.weights.tell():
                return None
        rollout, metrics = self._learned, self._metrics
        assert metrics is not None
        self._learned = self._under_way = self._metrics = None
        self.weights.end()
        return self._conclude(rollout, metrics)

    def _apply(self, weight: Tensor, lr: float) -> Tensor:
        """Push the gradient; one that is not finite ends the run."""
        norm = self.optimizer.clip()
        if math.isfinite(norm):
            self.weights.push(lr, float(weight))
        return norm


class PushingWorker(BaseRole):
    """An actor and its learner, which begin when the servers have the first weights."""

    def __init__(
        self,
        actor: Actor,
        learner: PushingLearner,
        reports: Reports,
        own: Wakeup,
        *,
        run_seed: int,
        most_episodes: int,
        varies: bool,
    ) -> None:
        """``most_episodes`` may end in one update; ``varies``: whether a resumed or replaced worker
        draws minibatches of its own."""
        self.actor, self.learner, self.reports, self.own = actor, learner, reports, own
        self.run_seed, self.most_episodes, self.varies = run_seed, most_episodes, varies
        self._begun = False
        self.learner.weights.pull()

    def ready(self) -> bool:
        """Whether the servers have answered, and there is room to report."""
        if self.actor.left or not self.reports.can_report(self.most_episodes):
            return False
        return self.learner.take() and (self._begun or self._begin())

    def _begin(self) -> bool:
        learner = self.learner
        learner.steps = learner.weights.steps
        if learner.steps and self.varies:  # no minibatch twice
            learner.vary(self.run_seed)
        learner.start()
        self._begun = True
        return True

    def wait(self, timeout_secs: float) -> None:
        """Sleep until a server may have answered."""
        with self.learner.heartbeat.waiting():
            self.own.wait(timeout_secs)

    def step(self) -> None:
        """Act, and begin to learn from it; or learn on."""
        if not self.learner.under_way:
            while self.actor.ready():
                self.actor.step()
            if self.actor.left:
                return
        update = self.learner.step()
        if update is not None:
            self._tell(update)

    def _tell(self, update: Update) -> None:
        weights = self.learner.weights
        own = {
            STEPS: float(self.learner.num_steps),
            VERSION: float(weights.version),
            GRADIENTS: float(weights.gradients),
        }
        episodes = np.column_stack([update.returns, update.lengths, *update.info.values()])
        self.reports.report(own | weights.metrics() | update.metrics, episodes)

    def save_episodes(self) -> State | None:
        """Where its episodes are, and its own randomness."""
        return save_both(self.actor, self.learner)

    def load_episodes(self, saved: State) -> None:
        """Go on from :meth:`save_episodes`."""
        load_both(self.actor, self.learner, saved)

    def close(self) -> None:
        """Close the environments."""
        self.actor.close()
