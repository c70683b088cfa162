"""Advantage actor-critic: one gradient step on each batch (https://arxiv.org/abs/1602.01783).

Deviations from the paper: synchronous, generalised advantages (lambda 1 is the paper's n-step
return), Adam by default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rookery.algos.on_policy import Batch, OnPolicyAlgorithm, OnPolicyConfig, minibatches
from rookery.core.schedule import Schedule, value_at
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic
from rookery.ops.policy_gradient import masked_mean, policy_gradient_loss
from rookery.ops.value import value_loss


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnPolicyConfig):
    """A2C's settings."""

    rollout_steps: int = 5
    """Steps of each environment in one rollout (T)."""
    gae_lambda: float = 1.0
    """0: one-step advantage; 1: the return to the end of the episode or rollout."""
    entropy_coef: Schedule = 0.01
    """Weight of the entropy bonus: a number, or a schedule over absolute steps."""
    normalize_advantage: bool = False
    """Shift and scale the advantages of each batch to mean 0 and deviation 1."""


class A2C(OnPolicyAlgorithm[A2CConfig]):
    """The algorithm; see :mod:`rookery.algos.algorithm` for the loop that calls it."""

    Config = A2CConfig

    def minibatches(self, batch: Batch, rng: np.random.Generator) -> Iterator[Batch]:
        """The batch as a whole, once."""
        return minibatches(batch, recurrent=self.recurrent, num_minibatches=1, rng=rng)

    def loss(self, policy: ActorCritic, batch: Batch, steps: int) -> tuple[Tensor, Tensors]:
        """Policy gradient, value error and entropy bonus, averaged over the steps that count."""
        dist, value = policy.unroll(batch.obs, batch.state, batch.reset)
        mask, config = batch.mask, self.config
        actor = masked_mean(
            policy_gradient_loss(dist.log_prob(batch.action), batch.advantage), mask
        )
        critic = masked_mean(value_loss(value, batch.target, config.value_loss), mask)
        entropy = masked_mean(dist.entropy(), mask)
        total = actor + config.value_coef * critic - value_at(config.entropy_coef, steps) * entropy
        return total, {
            "policy_loss": actor.detach(),
            "value_loss": critic.detach(),
            "entropy": entropy.detach(),
        }
