"""The learner: takes what the actors brought, updates the policy, publishes it."""

from __future__ import annotations

import copy
import math
import time
import zlib
from collections.abc import Callable, Generator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rookery.algos.algorithm import Algorithm
from rookery.core.errors import RunFailed, UserError
from rookery.core.group import Alone, Group
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import BaseRole, ExperienceSource, ParamSink
from rookery.core.records import Rollout
from rookery.core.schedule import value_at
from rookery.core.seeding import generator_state, restore_generator, stream
from rookery.core.tensors import Tensors
from rookery.core.update import Update
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.policy import Policy
from rookery.params.flat import FlatParams
from rookery.params.mean_weights import MeanWeights
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.runs.checkpoint_files import State
from rookery.runs.tensorfile import SavedArrays

_LEARNED = "learned_weights"
"""The weights that learning goes on with, where those saved to be played are a mean."""


QUICK_SECS = 0.5
"""An update that takes less is finished, and nothing is kept for the case that it is not."""


class Learner(BaseRole):
    """One policy, one optimizer, one algorithm.

    When the run is about to end, a long update is undone and not made again: see :meth:`step`.
    """

    undoes: ClassVar[bool] = True
    """Whether an update may be undone: nobody else has seen or changed anything of it."""

    def __init__(
        self,
        *,
        policy: ActorCritic,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        source: ExperienceSource,
        params: ParamSink,
        rng: np.random.Generator,
        group: Group | None = None,
        heartbeat: Heartbeat | None = None,
        leaving: Callable[[], bool] | None = None,
    ) -> None:
        """``leaving``: whether the run is about to end; None if that changes nothing."""
        self.policy = policy
        self.leaving, self.left = leaving, False
        self._last_secs = math.inf
        self.group = group or Alone()
        self.algorithm = algorithm
        self.flat = FlatParams(policy)
        self.optimizer = self._optimizer(optimizer)
        average = optimizer.average_updates
        self.mean = MeanWeights(self.flat.data, average) if average else None
        self.source = source
        self.params = params
        self.rng = rng
        self.heartbeat = heartbeat or Heartbeat()
        self.steps = 0
        self.updates = 0

    def _optimizer(self, config: OptimizerConfig) -> FlatOptimizer:
        return FlatOptimizer(config, self.flat)

    def start(self) -> None:
        """Publish the weights the actors begin with."""
        if self.mean is not None and not self.mean.count:  # they may have come from elsewhere
            self.mean.restart()
        self.params.publish(self.updates, self.flat.tensors())

    def ready(self) -> bool:
        """Whether a whole batch is there."""
        return not self.left and self.source.can_sample()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.heartbeat.waiting():
            self.source.wait(timeout_secs)

    def missing(self) -> list[int]:
        """Actors whose rollouts are waited for."""
        return self.source.missing()

    def step(self) -> Update | None:
        """Learn from one batch and publish the new weights.

        In a group every member does so at once, each from its own batch, with the mean gradient.
        If the run is about to end and this would take long, all is left as it was before.
        """
        begun, rollout = time.monotonic(), self.source.sample()
        alone, slow = self.undoes and self.group.size == 1, self._last_secs >= QUICK_SECS
        leaving = self.leaving if alone and slow else None
        before = copy.deepcopy(self.save_state()) if leaving is not None else None
        metrics = self._learn(rollout, leaving)
        self._last_secs = time.monotonic() - begun
        if metrics is None:
            assert before is not None
            self.load_state(before)
            self.left = True
            return None
        return self._conclude(rollout, metrics)

    def _conclude(self, rollout: Rollout, metrics: dict[str, float]) -> Update:
        """Count and publish what was learned from ``rollout``, and give it back."""
        if self.mean is not None:
            self.mean.add()
        num_steps, metrics = self._together(rollout.num_steps, metrics)
        self.steps += num_steps
        self.updates += 1
        update = self._report(rollout, metrics)
        self.params.publish(self.updates, self.flat.tensors())
        self.source.release()
        return update

    def _learn(
        self, rollout: Rollout, leaving: Callable[[], bool] | None
    ) -> dict[str, float] | None:
        """What one update did; None if it was left between two minibatches."""
        learning = self._learning(rollout)
        while True:
            try:
                next(learning)
            except StopIteration as end:
                metrics: dict[str, float] = end.value
                return metrics
            if leaving is not None and leaving():
                return None

    def _learning(self, rollout: Rollout) -> Generator[None, None, dict[str, float]]:
        """One update, which pauses after each gradient step; what it did."""
        batch = self.algorithm.prepare(rollout)
        lr = value_at(self.optimizer.config.lr, self.steps)
        seen: list[Tensors] = []
        for minibatch in self.algorithm.minibatches(batch, self.rng):
            loss, metrics = self.algorithm.loss(self.policy, minibatch, self.steps)
            self.flat.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            metrics["grad_norm"] = self._apply(minibatch.mask.sum(), lr)
            seen.append(metrics)
            yield
        self.policy.update_moments(batch.obs, batch.mask.bool(), self.group.sum_)
        means = {name: float(torch.stack([m[name] for m in seen]).mean()) for name in seen[0]}
        if not math.isfinite(means["grad_norm"]):
            raise RunFailed(
                f"the gradient became {means['grad_norm']} at step {self.steps}: lower --lr, "
                "set optimizer.max_grad_norm, or normalise observations and rewards"
            )
        return means | {"lr": lr} | self.algorithm.report(batch)

    def _apply(self, weight: Tensor, lr: float) -> Tensor:
        """Step along the gradient, of so many samples; its norm before clipping."""
        self.flat.average_grad(weight, self.group)
        return self.optimizer.step(lr)

    def _together(self, num_steps: int, metrics: dict[str, float]) -> tuple[int, dict[str, float]]:
        """Steps of the whole group, and the means of its metrics."""
        own = torch.tensor([num_steps, *metrics.values()], dtype=torch.float64)
        steps, *sums = self.group.sum_(own).tolist()
        means = (value / self.group.size for value in sums)
        return int(steps), dict(zip(metrics, means, strict=True))

    def _report(self, rollout: Rollout, metrics: dict[str, float]) -> Update:
        """What the update did; the episodes are those of the whole group at its first member."""
        ended = rollout.episode_length > 0
        columns = [rollout.episode_return, rollout.episode_length, *rollout.info.values()]
        told = self.group.gather(np.stack([column[ended] for column in columns], 1))
        rows = np.concatenate(told) if told else np.empty((0, len(columns)))
        return Update(
            steps=self.steps,
            updates=self.updates,
            metrics={f"train/{name}": value for name, value in metrics.items()},
            returns=rows[:, 0],
            lengths=rows[:, 1].astype(np.int64),
            info=dict(zip(rollout.info, rows[:, 2:].T, strict=True)),
        )

    def check_agreement(self) -> None:
        """Stop if the weights of the group have come apart."""
        tensors = self.flat.tensors().values()
        digest = zlib.crc32(b"".join(tensor.cpu().numpy().tobytes() for tensor in tensors))
        agrees = digest == int(self.group.first(np.array([digest], np.float64))[0])
        apart = torch.zeros(self.group.size, dtype=torch.float64)
        apart[self.group.rank] = not agrees
        others = torch.nonzero(self.group.sum_(apart)).flatten().tolist()
        if others:
            names = ", ".join(f"worker-{rank}" for rank in others)
            raise RunFailed(
                f"the weights of {names} differ from worker-0's after update {self.updates}: "
                "the machines must have the same versions of torch and the same kind of processor"
            )

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint that are the learner's; its weights are those to be played."""
        policy = self.policy
        weights: SavedArrays = dict(policy.state_dict())
        if self.mean is not None:
            weights |= self.flat.views(self.mean.mean)
        return {
            "weights": State(weights, {"signature": policy.signature.to_json()}),
            "optimizer": State(dict(self.optimizer.state_tensors()), {}),
            "learner": self.save_own(),
        }

    def save_own(self) -> State:
        """Counts, randomness and the algorithm's state."""
        own: SavedArrays = dict(self.algorithm.state_tensors())
        averaged = 0
        if self.mean is not None:
            own[_LEARNED], averaged = self.flat.data, self.mean.count
        return State(
            own,
            {
                "averaged": averaged,
                "steps": self.steps,
                "updates": self.updates,
                "rng": generator_state(self.rng),
            },
        )

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from :meth:`save_state`."""
        load_weights(self.policy, parts["weights"])
        self.optimizer.load_state_tensors(saved_tensors(parts["optimizer"]))
        self.load_own(parts["learner"])

    def load_own(self, saved: State) -> None:
        """Go on from :meth:`save_own`."""
        own, data = saved_tensors(saved), saved.data
        if self.mean is not None:
            self.mean.restart(data.get("averaged", 0))
        if _LEARNED in own:
            self.flat.data.copy_(own.pop(_LEARNED))
        self.algorithm.load_state_tensors(own)
        self.steps, self.updates = data["steps"], data["updates"]
        restore_generator(self.rng, data["rng"])

    def save_beside(self) -> dict[str, State]:
        """Nothing lies outside of checkpoints."""
        return {}

    def vary(self, run_seed: int) -> None:
        """Draw minibatches of one's own from here on; a checkpoint has the first member's."""
        self.rng = stream(run_seed, "learner", self.group.rank, self.steps)


def load_weights(policy: Policy, saved: State) -> None:
    """Copy saved weights into ``policy`` in place."""
    tensors, own = saved_tensors(saved), policy.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        theirs, ours = tensors.get(name), own.get(name)
        if theirs is None or ours is None or theirs.shape != ours.shape:
            raise UserError(
                f"the saved weights are of another network: {name} is {_shape(theirs)} there and "
                f"{_shape(ours)} here; use the policy.* settings they were trained with"
            )
    policy.load_state_dict(tensors)
    policy.refreshed()


def _shape(tensor: torch.Tensor | None) -> str:
    return "missing" if tensor is None else str(list(tensor.shape))


def saved_tensors(saved: State) -> Tensors:
    """The arrays of a saved part."""
    return {name: torch.as_tensor(array) for name, array in saved.arrays.items()}
