"""IMPALA: an actor-critic for experience that older weights made (https://arxiv.org/abs/1802.01561).

The policy is unrolled over the T+1 observations of each rollout; V-trace makes value targets and
advantages of what it thinks now and what was done then.

Deviations from the paper: the losses are means over steps, not sums; a cut episode bootstraps from
the value that the actor noted for its last observation, under the weights that acted; Adam by
default; no rewards are clipped unless ``reward_min`` and ``reward_max`` say so.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rookery.algos.on_policy import OnPolicyAlgorithm, OnPolicyConfig, explained_variance
from rookery.core.errors import UserError
from rookery.core.records import Rollout
from rookery.core.schedule import Schedule, value_at
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic
from rookery.ops.policy_gradient import masked_mean, policy_gradient_loss, standardize
from rookery.ops.returns import vtrace
from rookery.ops.value import value_loss


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(OnPolicyConfig):
    """IMPALA's settings."""

    whole_envs: ClassVar[bool] = True

    rollout_steps: int = 20
    """Steps of each environment in one rollout (T)."""
    gae_lambda: float = 1.0
    """V-trace's lambda: it shortens the traces; on-policy it is that of generalised advantages."""
    entropy_coef: Schedule = 0.01
    """Weight of the entropy bonus: a number, or a schedule over absolute steps."""
    normalize_advantage: bool = False
    """Shift and scale the advantages of each minibatch to mean 0 and deviation 1."""
    rho_bar: float = 1.0
    """Importance weights of value errors and of the policy gradient are cut here."""
    c_bar: float = 1.0
    """Importance weights along a trace are cut here; at most rho_bar."""
    num_minibatches: int = 1
    """Gradient steps per batch, each on some of its environments; there is one pass."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_minibatches < 1:
            raise UserError(f"algo.num_minibatches: must be at least 1, got {self.num_minibatches}")
        if self.c_bar <= 0:
            raise UserError(f"algo.c_bar: must be positive, got {self.c_bar:g}")
        if self.rho_bar < self.c_bar:
            raise UserError(
                f"algo.rho_bar: must be at least algo.c_bar ({self.c_bar:g}), got {self.rho_bar:g}"
            )


@dataclass(slots=True)
class Traces:
    """What the loss reads, leaves ``[T, B, ...]``; ``seen``, ``reset`` have T+1 rows."""

    seen: Tensors
    """All observations, the last of which was not acted on."""
    state: Tensors
    reset: Tensor
    action: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_value: Tensor
    mask: Tensor

    @property
    def obs(self) -> Tensors:
        """The observations that were acted on."""
        return {name: leaf[:-1] for name, leaf in self.seen.items()}

    def columns(self, index: Tensor) -> Traces:
        """Some environments, whole sequences."""

        def rows(leaf: Tensor) -> Tensor:
            return leaf.index_select(1, index)

        return Traces(
            seen={name: rows(leaf) for name, leaf in self.seen.items()},
            state={name: leaf.index_select(0, index) for name, leaf in self.state.items()},
            reset=rows(self.reset),
            action=rows(self.action),
            log_prob=rows(self.log_prob),
            reward=rows(self.reward),
            terminated=rows(self.terminated),
            truncated=rows(self.truncated),
            final_value=rows(self.final_value),
            mask=rows(self.mask),
        )


class IMPALA(OnPolicyAlgorithm[IMPALAConfig]):
    """The algorithm; see :mod:`rookery.algos.algorithm` for the loop that calls it."""

    Config = IMPALAConfig
    off_policy = True

    def prepare(self, rollout: Rollout) -> Traces:  # type: ignore[override]
        """The rollouts as tensors; targets depend on the policy and are made by the loss."""
        tensor = self.targets.tensor
        return Traces(
            seen={name: tensor(leaf) for name, leaf in rollout.obs.items()},
            state={name: tensor(leaf) for name, leaf in rollout.state.items()},
            reset=tensor(rollout.reset),
            action=tensor(rollout.action),
            log_prob=tensor(rollout.log_prob),
            reward=self.targets.reward(rollout),
            terminated=tensor(rollout.terminated),
            truncated=tensor(rollout.truncated),
            final_value=tensor(rollout.final_value),
            mask=tensor(rollout.mask).float(),
        )

    def minibatches(self, batch: Traces, rng: np.random.Generator) -> Iterator[Traces]:
        """The batch as a whole, or its environments in some parts at random; once."""
        parts = self.config.num_minibatches
        if parts == 1:
            yield batch
            return
        order = torch.from_numpy(rng.permutation(batch.mask.shape[1])).to(batch.mask.device)
        for index in order.tensor_split(parts):
            yield batch.columns(index)

    def loss(self, policy: ActorCritic, batch: Traces, steps: int) -> tuple[Tensor, Tensors]:
        """Policy gradient, value error and entropy bonus, averaged over the steps that count."""
        dist, value = policy.unroll_beyond(batch.seen, batch.state, batch.reset)
        mask, config = batch.mask, self.config
        log_prob = dist.log_prob(batch.action)
        log_ratio = (log_prob - batch.log_prob).detach()
        target, advantage = self._traced(batch, log_ratio, value.detach())
        actor = masked_mean(policy_gradient_loss(log_prob, advantage), mask)
        critic = masked_mean(value_loss(value[:-1], target, config.value_loss), mask)
        entropy = masked_mean(dist.entropy(), mask)
        total = actor + config.value_coef * critic - value_at(config.entropy_coef, steps) * entropy
        with torch.no_grad():
            ratio = log_ratio.exp()
            return total, {
                "policy_loss": actor.detach(),
                "value_loss": critic.detach(),
                "entropy": entropy.detach(),
                "rho_mean": masked_mean(ratio.clamp(max=config.rho_bar), mask),
                "rho_clipped": masked_mean((ratio > config.rho_bar).float(), mask),
                "explained_variance": explained_variance(value[:-1], target, mask),
            }

    def _traced(self, batch: Traces, log_ratio: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Value targets and advantages; rows spent on resets follow an end, so nothing leaks."""
        config = self.config
        target, advantage = vtrace(
            log_ratio,
            batch.reward,
            value,
            batch.terminated,
            batch.truncated,
            batch.final_value,
            config.gamma,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
            lam=config.gae_lambda,
        )
        if config.normalize_advantage:
            advantage = standardize(advantage, batch.mask, total=self.targets.group.sum_)
        return target, advantage

    def report(self, batch: Traces) -> dict[str, float]:  # type: ignore[override]
        """Nothing more: targets are the minibatches' own."""
        return {}
