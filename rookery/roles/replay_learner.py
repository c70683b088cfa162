"""A learner from replay: learns from sequences, publishes, and tells priorities.

Several learners are a group: all see the same batch, each learns from its columns, and all step the
weights that they hold together (:mod:`rookery.params.sharded`); only the first publishes them, and
says at each step what all do. Learners that do not wait for each other are in
:mod:`rookery.roles.free_learner`.

Shapes: N sequences of a batch, M of them this learner's.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rookery.algos.dqn import DQN, Learned, SequenceBatch
from rookery.core.errors import RunFailed
from rookery.core.group import Alone, Group, share_of
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import ActorStates, Asker, BaseRole, ParamSink
from rookery.core.schedule import value_at
from rookery.core.spec import Arrays
from rookery.core.update import Update
from rookery.nets.q_network import QNetwork
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.params.sharded import ShardedOptimizer, Shards
from rookery.roles.exploring_lane import carried_over_in
from rookery.roles.lane import group as saved_under
from rookery.roles.learner import load_weights, saved_tensors
from rookery.roles.value_watch import ValueWatch
from rookery.roles.worker import GO_ON, OVER, WAIT
from rookery.runs.checkpoint_files import State, episodes_part
from rookery.runs.tensorfile import SavedArrays
from rookery.transport.sample_slots import SlotSource

_LOG = logging.getLogger(__name__)
_TARGET = "target/"
_REPLAY, _ACTOR_STATES, _BEQUESTS = "replay", "actor_states", "bequests"
"""Parts of checkpoints: which snapshot is its own; what actors left, and its name of old."""


class ReplayLearner(BaseRole):
    """An online network, the target network that follows it, one optimizer."""

    def __init__(
        self,
        *,
        policy: QNetwork,
        algorithm: DQN,
        optimizer: OptimizerConfig,
        source: SlotSource,
        params: ParamSink,
        info_keys: tuple[str, ...] = (),
        num_envs: int | None = None,
        shards: Shards | None = None,
        snapshots: Asker | None = None,
        actor_states: ActorStates | None = None,
        heartbeat: Heartbeat | None = None,
        warn: Callable[[str], None] = _LOG.warning,
    ) -> None:
        """``num_envs`` are the environments of the run, to report how many of their actions are
        random; ``snapshots`` asks replay to save itself; ``actor_states`` is what checkpoints keep
        of actors."""
        self.policy, self.algorithm = policy, algorithm
        self.shards = shards
        self.group: Group = Alone() if shards is None else shards.group
        self.snapshots, self.actor_states = snapshots, actor_states
        memory = {} if shards is None else {"data": shards.weights, "grad": shards.gradient}
        self.flat = FlatParams(policy, **memory)
        self.target = copy.deepcopy(policy).requires_grad_(False)
        self.target.share_encoder(policy)  # statistics of observations are of both
        self.target_flat = FlatParams(self.target)
        scales = [(self.flat.part(part), by) for part, by in algorithm.lr_scales(policy)]
        self.optimizer = self._optimizer(optimizer, scales)
        self.source, self.params = source, params
        self.source.join(self.group)
        self._over = False
        self.info_keys, self.num_envs = info_keys, num_envs
        self.heartbeat = heartbeat or Heartbeat()
        self.watch = ValueWatch(algorithm.most_value, warn)
        self.steps = 0
        """Of the run, as far as is known here."""
        self.learned_at = 0
        """The same when the last update was made; schedules go by it."""
        self.updates = 0
        self._began_at = 0
        """Steps at which replay began to fill, as far as is known here."""

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
        """Whether there is a batch to learn from; the others of a group do what the first does."""
        return bool(self.group.rank) or self.source.can_sample()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.heartbeat.waiting():
            self.source.wait(timeout_secs)
        if self.group.size > 1:
            self.group.first(WAIT)  # so that nobody waits in vain

    def filling(self) -> tuple[int, int] | None:
        """Steps of the run while replay fills up, which what is saved now counts, and at how many
        it is full enough."""
        if not self.source.filling():
            return None
        self.steps = max(self.steps, self.source.total_steps())
        return self.steps, self._began_at + self.algorithm.config.learning_starts

    def step(self) -> Update | None:
        """Learn from one batch, or do nothing if the first of the group says so."""
        if self.group.size > 1:
            word = self.group.first(GO_ON)
            self._over = bool(word == OVER)
            if word != GO_ON:
                return None
        return self.learn()

    def done(self) -> bool:
        """Whether the first of the group has ended."""
        return self._over

    def finish(self) -> Update | None:
        """Let the others end too."""
        if self.group.size > 1 and self.group.rank == 0:
            self.group.first(OVER)
        return None

    def learn(self) -> Update:
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
        self.watch.look(metrics["value_mean"], metrics["reward_peak"], self.steps)
        if self.num_envs is not None:
            epsilon = self.algorithm.config.mean_epsilon(self.steps, self.num_envs)
            metrics |= {} if epsilon is None else {"epsilon": epsilon}
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

    def save_beside(self) -> dict[str, State]:
        """Have replay save itself; what a checkpoint says of that, and of the actors."""
        parts: dict[str, State] = {}
        if self.snapshots is not None:
            self.snapshots.answers()  # which makes room
            if self.snapshots.can_ask():
                self.snapshots.ask(self.steps)
                parts[_REPLAY] = State({}, {"snapshot": self.steps})
        states = self.actor_states
        if states is not None:
            left = {actor: states.read(actor) or {} for actor in range(states.num_actors)}
            arrays: SavedArrays = {
                f"{actor}/{name}": array
                for actor, state in left.items()
                for name, array in state.items()
            }
            if arrays:
                parts[_ACTOR_STATES] = State(arrays)
        return parts

    def _restore_actors(self, parts: Mapping[str, State]) -> None:
        """Let actors begin with what those knew that the checkpoint was made of."""
        if self.actor_states is None or self.group.rank:
            return
        for actor in range(self.actor_states.num_actors):
            left = carried_over(parts, actor)
            if left and not self.actor_states.write(actor, left):
                _LOG.warning(
                    "actor-%d knows nothing of what actors learned before: its are other arms or "
                    "another number of environments",
                    actor,
                )

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from :meth:`save_state`."""
        self._restore_actors(parts)
        load_weights(self.policy, parts["weights"])
        self.optimizer.load_state_tensors(saved_tensors(parts["optimizer"]))
        learner = parts["learner"]
        target = {name.removeprefix(_TARGET): array for name, array in learner.arrays.items()}
        load_weights(self.target, State(target))
        self.steps, self.updates = learner.data["steps"], learner.data["updates"]
        self.learned_at = learner.data.get("learned_at", self.steps)
        self._began_at = self.steps


def carried_over(parts: Mapping[str, State], actor: int) -> Arrays:
    """What the checkpoint of ``parts`` has for the next ``actor``; empty if nothing.

    Where an actor's whole state was saved, it is in there.
    """
    if (whole := parts.get(episodes_part(actor))) is not None:
        return carried_over_in(whole)
    name = _ACTOR_STATES if _ACTOR_STATES in parts else _BEQUESTS
    return saved_under(parts[name], f"{actor}/") if name in parts else {}
