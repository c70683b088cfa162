"""The learner: takes what the actors brought, updates the policy, publishes it.

The engine's loop::

    while running:
        if learner.ready():
            update = learner.step()
        else:
            learner.wait(timeout_secs)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from rookery.algos.algorithm import Algorithm
from rookery.algos.on_policy import explained_variance
from rookery.core.errors import RunFailed, UserError
from rookery.core.ports import ExperienceSource, ParamSink
from rookery.core.records import Rollout
from rookery.core.schedule import value_at
from rookery.core.seeding import generator_state, restore_generator
from rookery.core.spec import Array, Arrays
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.roles.pulse import Pulse
from rookery.runs.checkpoint import SavedArrays, State


@dataclass(slots=True)
class Update:
    """What one update did and what its rollouts told."""

    steps: int
    """Environment steps so far in the run."""
    updates: int
    """Updates so far; the version of the weights just published."""
    metrics: dict[str, float]
    """``train/*`` values."""
    returns: Array
    """Raw returns of the episodes that ended."""
    lengths: Array
    """Their lengths in steps."""
    info: Arrays
    """Values copied from ``info`` at their ends."""


class Learner:
    """One policy, one optimizer, one algorithm."""

    def __init__(
        self,
        *,
        policy: ActorCritic,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        source: ExperienceSource,
        params: ParamSink,
        rng: np.random.Generator,
        pulse: Pulse | None = None,
    ) -> None:
        self.policy = policy
        self.algorithm = algorithm
        self.flat = FlatParams(policy)
        self.optimizer = FlatOptimizer(optimizer, self.flat)
        self.source = source
        self.params = params
        self.rng = rng
        self.pulse = pulse or Pulse()
        self.steps = 0
        self.updates = 0

    def start(self) -> None:
        """Publish the weights the actors begin with."""
        self.params.publish(self.updates, self.flat.tensors())

    def ready(self) -> bool:
        """Whether a whole batch is there."""
        return self.source.can_sample()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.pulse.waiting():
            self.source.wait(timeout_secs)

    def step(self) -> Update:
        """Learn from one batch and publish the new weights."""
        rollout = self.source.sample()
        metrics = self._learn(rollout)
        self.steps += rollout.num_steps
        self.updates += 1
        update = self._report(rollout, metrics)
        self.params.publish(self.updates, self.flat.tensors())
        self.source.release()
        return update

    def _learn(self, rollout: Rollout) -> dict[str, float]:
        batch = self.algorithm.prepare(rollout)
        lr = value_at(self.optimizer.config.lr, self.steps)
        seen: list[Tensors] = []
        for minibatch in self.algorithm.minibatches(batch, self.rng):
            loss, metrics = self.algorithm.loss(self.policy, minibatch, self.steps)
            self.flat.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            metrics["grad_norm"] = self.optimizer.step(lr)
            seen.append(metrics)
        self.policy.update_moments(batch.obs, batch.mask.bool())
        means = {name: float(torch.stack([m[name] for m in seen]).mean()) for name in seen[0]}
        if not math.isfinite(means["grad_norm"]):
            raise RunFailed(
                f"the gradient became {means['grad_norm']} at step {self.steps}: lower --lr, "
                "set optimizer.max_grad_norm, or normalise observations and rewards"
            )
        return means | {"lr": lr, "explained_variance": float(explained_variance(batch))}

    def _report(self, rollout: Rollout, metrics: dict[str, float]) -> Update:
        ended = rollout.episode_length > 0
        return Update(
            steps=self.steps,
            updates=self.updates,
            metrics={f"train/{name}": value for name, value in metrics.items()},
            returns=rollout.episode_return[ended],
            lengths=rollout.episode_length[ended],
            info={name: values[ended] for name, values in rollout.info.items()},
        )

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint that are the learner's."""
        policy = self.policy
        weights: SavedArrays = dict(policy.state_dict())
        return {
            "weights": State(weights, {"signature": policy.signature.to_json()}),
            "optimizer": State(dict(self.optimizer.state_tensors()), {}),
            "learner": State(
                dict(self.algorithm.state_tensors()),
                {
                    "steps": self.steps,
                    "updates": self.updates,
                    "rng": generator_state(self.rng),
                },
            ),
        }

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from :meth:`save_state`."""
        load_weights(self.policy, parts["weights"])
        self.optimizer.load_state_tensors(_tensors(parts["optimizer"]))
        self.algorithm.load_state_tensors(_tensors(parts["learner"]))
        data = parts["learner"].data
        self.steps, self.updates = data["steps"], data["updates"]
        restore_generator(self.rng, data["rng"])


def load_weights(policy: ActorCritic, saved: State) -> None:
    """Copy saved weights into ``policy`` in place."""
    tensors, own = _tensors(saved), policy.state_dict()
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


def _tensors(saved: State) -> Tensors:
    return {name: torch.as_tensor(array) for name, array in saved.arrays.items()}
