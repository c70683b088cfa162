"""Proximal policy optimisation, clipped objective (https://arxiv.org/abs/1707.06347).

Deviations from the paper: advantages are standardised once per batch, not per minibatch; gradients
are clipped by norm; truncated episodes bootstrap from their own last observation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rookery.algos.on_policy import Batch, OnPolicyAlgorithm, OnPolicyConfig, minibatches
from rookery.core.errors import UserError
from rookery.core.schedule import Schedule, check_schedule, value_at
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic
from rookery.ops.policy_gradient import approximate_kl, clipped_surrogate_loss, masked_mean
from rookery.ops.value import clipped_value, value_loss


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """PPO's settings."""

    rollout_steps: int = 128
    """Steps of each environment in one rollout (T)."""
    num_epochs: int = 4
    """Passes over each batch (1 with one minibatch is close to A2C)."""
    num_minibatches: int = 4
    """Gradient steps per pass; recurrent policies are split by whole environments."""
    clip: Schedule = 0.2
    """How far the probability ratio may move: a number, or a schedule over absolute steps."""
    clip_value: float | None = None
    """Keep new values within this of the old ones; null leaves them."""
    entropy_coef: Schedule = 0.01
    """Weight of the entropy bonus: a number, or a schedule over absolute steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_epochs", "num_minibatches"):
            if getattr(self, name) < 1:
                raise UserError(f"algo.{name}: must be at least 1, got {getattr(self, name)}")
        check_schedule("algo.clip", self.clip)
        if self.clip_value is not None and self.clip_value <= 0:
            raise UserError(f"algo.clip_value: must be positive or null, got {self.clip_value}")


class PPO(OnPolicyAlgorithm[PPOConfig]):
    """The algorithm; see :mod:`rookery.algos.algorithm` for the loop that calls it."""

    Config = PPOConfig

    def minibatches(self, batch: Batch, rng: np.random.Generator) -> Iterator[Batch]:
        """Every minibatch of every epoch, in a new random order each epoch."""
        for _ in range(self.config.num_epochs):
            yield from minibatches(
                batch,
                recurrent=self.recurrent,
                num_minibatches=self.config.num_minibatches,
                rng=rng,
            )

    def loss(self, policy: ActorCritic, batch: Batch, steps: int) -> tuple[Tensor, Tensors]:
        """Clipped objective, value error and entropy bonus, averaged over the steps that count."""
        dist, value = policy.unroll(batch.obs, batch.state, batch.reset)
        mask, config = batch.mask, self.config
        clip = value_at(config.clip, steps)
        log_prob = dist.log_prob(batch.action)
        surrogate, ratio = clipped_surrogate_loss(log_prob, batch.log_prob, batch.advantage, clip)
        errors = value_loss(value, batch.target, config.value_loss)
        if config.clip_value is not None:
            kept = clipped_value(value, batch.value, config.clip_value)
            errors = torch.maximum(errors, value_loss(kept, batch.target, config.value_loss))
        actor, critic = masked_mean(surrogate, mask), masked_mean(errors, mask)
        entropy = masked_mean(dist.entropy(), mask)
        total = actor + config.value_coef * critic - value_at(config.entropy_coef, steps) * entropy
        with torch.no_grad():
            metrics = {
                "policy_loss": actor.detach(),
                "value_loss": critic.detach(),
                "entropy": entropy.detach(),
                "approx_kl": masked_mean(approximate_kl(log_prob - batch.log_prob), mask),
                "clip_fraction": masked_mean(((ratio - 1.0).abs() > clip).float(), mask),
            }
        return total, metrics
