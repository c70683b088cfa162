"""The learner of formation ``replay``: learns from sequences, publishes, and tells priorities.

The engine's loop is that of :class:`~rookery.roles.learner.Learner`. Several learners are a group:
all see the same batch, each learns from its columns, and all step the weights that they hold
together (:mod:`rookery.params.sharded`); only the first publishes them. Learners that do not wait
for each other are in :mod:`rookery.roles.free_learner`.

Shapes: N sequences of a batch, M of them this learner's.
"""

from __future__ import annotations

import copy
import math
from typing import Protocol

import torch
from torch import Tensor

from rookery.algos.dqn import DQN, Learned, SequenceBatch
from rookery.core.errors import RunFailed
from rookery.core.group import Alone, Group, share_of
from rookery.core.ports import ParamSink
from rookery.core.schedule import value_at
from rookery.core.spec import Array
from rookery.nets.q_network import QNetwork
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.params.sharded import ShardedOptimizer, Shards
from rookery.replay.table import Sample
from rookery.roles.learner import Update, load_weights, saved_tensors
from rookery.roles.pulse import Pulse
from rookery.runs.checkpoint_files import State
from rookery.runs.tensorfile import SavedArrays

_TARGET = "target/"


class SequenceSource(Protocol):
    """Where a learner takes sequences from."""

    def can_sample(self) -> bool:
        """Whether a batch is there."""
        ...

    def sample(self) -> Sample:
        """The batch, to be read until :meth:`release`."""
        ...

    def release(self, priorities: Array) -> None:
        """Give the batch back, with the priorities ``[M]`` that its sequences have now."""
        ...

    def progress(self) -> tuple[int, Array]:
        """Steps of the run so far, and ``[E, ...]`` what the episodes told that ended since."""
        ...

    def total_steps(self) -> int:
        """Steps of the run so far, of which nothing may have been sampled."""
        ...

    def filling(self) -> bool:
        """Whether replay takes steps and has nothing to learn from yet, which may last."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until more may be there, at most ``timeout_secs``."""
        ...


class ReplayLearner:
    """An online network, the target network that follows it, one optimizer."""

    def __init__(
        self,
        *,
        policy: QNetwork,
        algorithm: DQN,
        optimizer: OptimizerConfig,
        source: SequenceSource,
        params: ParamSink,
        info_keys: tuple[str, ...] = (),
        shards: Shards | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        self.policy, self.algorithm = policy, algorithm
        self.shards = shards
        self.group: Group = Alone() if shards is None else shards.group
        memory = {} if shards is None else {"data": shards.weights, "grad": shards.gradient}
        self.flat = FlatParams(policy, **memory)
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.target.share_encoder(policy)  # statistics of observations are of both
        self.target_flat = FlatParams(self.target)
        scales = [(self.flat.part(part), by) for part, by in algorithm.lr_scales(policy)]
        self.optimizer = self._optimizer(optimizer, scales)
        self.source, self.params = source, params
        self.info_keys = info_keys
        self.pulse = pulse or Pulse()
        self.steps = 0
        """Of the run, as far as is known here."""
        self.learned_at = 0
        """The same when the last update was made; schedules go by it."""
        self.updates = 0

    def _optimizer(
        self, config: OptimizerConfig, scales: list[tuple[slice, float]]
    ) -> FlatOptimizer:
        if self.shards is None:
            return FlatOptimizer(config, self.flat, scales)
        return ShardedOptimizer(config, self.flat, self.shards, scales)

    def start(self) -> None:
        """Publish the weights the actors begin with."""
        if self.shards is not None:
            self.shards.meet()  # nobody writes where it begins any more
        if not self.updates:  # they may have come from elsewhere
            self._move_target(1.0)
        # Actors that were saved with the weights published last go on with those.
        self._publish(self.updates - self.updates % self.algorithm.config.publish_every)

    def _publish(self, version: int) -> None:
        if self.group.rank == 0:
            self.params.publish(version, self.flat.tensors())

    def ready(self) -> bool:
        """Whether there is a batch to learn from."""
        return self.source.can_sample()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.pulse.waiting():
            self.source.wait(timeout_secs)

    def count_steps(self) -> int:
        """Steps of the run so far; what is saved now counts them."""
        self.steps = max(self.steps, self.source.total_steps())
        return self.steps

    def step(self) -> Update:
        """Learn from one batch."""
        sample = self.source.sample()
        batch = self.algorithm.prepare(sample.sequences, sample.probability, self.learned_at)
        learned = self.algorithm.learn(self.policy, self.target, self._share(batch))
        self.flat.zero_grad()
        (learned.loss * self._weight(learned)).backward()  # type: ignore[no-untyped-call]
        lr = value_at(self.optimizer.config.lr, self.learned_at)
        norm = self.optimizer.step(lr)
        if self.policy.encoder.moments:
            self.policy.update_moments(batch.rows(0, -1), batch.mask)
        self.source.release(learned.priorities.cpu().numpy())
        self._follow_up(self.updates, self._count_updates())
        names = [*learned.metrics, "grad_norm"]
        values = torch.stack([*learned.metrics.values(), norm.to(learned.loss.device)])
        means = self.group.sum_(values) / self.group.size
        return self._report(dict(zip(names, means.tolist(), strict=True)) | {"lr": lr})

    def _count_updates(self) -> int:
        """Updates so far, with the one just done."""
        return self.updates + 1

    def _follow_up(self, before: int, now: int) -> None:
        """Move the target network and publish, where that is due ``now`` and was not ``before``."""
        config, self.updates = self.algorithm.config, now
        if config.target_tau is not None:
            self._move_target(1.0 - (1.0 - config.target_tau) ** (now - before))
        elif now // config.target_every > before // config.target_every:
            self._move_target(1.0)
        if now // config.publish_every > before // config.publish_every:
            self._publish(now)

    def _weight(self, learned: Learned) -> Tensor | float:
        """What share of the batch's loss is this learner's."""
        if self.group.size == 1:
            return 1.0
        return learned.num_steps / self.group.sum_(learned.num_steps.clone())

    def _share(self, batch: SequenceBatch) -> SequenceBatch:
        """The columns of the batch that are this learner's."""
        if self.group.size == 1:
            return batch
        return batch.columns(share_of(len(batch.weight), self.group))

    def _report(self, metrics: dict[str, float]) -> Update:
        """What the update did."""
        if not math.isfinite(metrics["grad_norm"]):
            raise RunFailed(
                f"the gradient became {metrics['grad_norm']} at step {self.steps}: lower --lr, "
                "set optimizer.max_grad_norm, or clip rewards (reward_min, reward_max)"
            )
        self.learned_at, rows = self.source.progress()
        self.steps = max(self.steps, self.learned_at)
        return Update(
            steps=self.steps,
            updates=self.updates,
            metrics={f"train/{name}": value for name, value in metrics.items()},
            returns=rows[:, 0],
            lengths=rows[:, 1].astype(int),
            info=dict(zip(self.info_keys, rows[:, 2:].T, strict=True)),
        )

    def _move_target(self, share: float) -> None:
        """Move the target network ``share`` of the way towards the online one."""
        self.target_flat.data.lerp_(self.flat.data, share)  # exact at 1

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint that are the learner's."""
        weights: SavedArrays = dict(self.policy.state_dict())
        target: SavedArrays = {
            f"{_TARGET}{name}": tensor for name, tensor in self.target.state_dict().items()
        }
        return {
            "weights": State(weights, {"signature": self.policy.signature.to_json()}),
            "optimizer": State(dict(self.optimizer.state_tensors()), {}),
            "learner": State(target, self._counts()),
        }

    def _counts(self) -> dict[str, int]:
        return {"steps": self.steps, "updates": self.updates, "learned_at": self.learned_at}

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from :meth:`save_state`."""
        load_weights(self.policy, parts["weights"])
        self.optimizer.load_state_tensors(saved_tensors(parts["optimizer"]))
        learner = parts["learner"]
        target = {name.removeprefix(_TARGET): array for name, array in learner.arrays.items()}
        load_weights(self.target, State(target))
        self.steps, self.updates = learner.data["steps"], learner.data["updates"]
        self.learned_at = learner.data.get("learned_at", self.steps)
