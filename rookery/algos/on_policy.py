"""What A2C, PPO and IMPALA share: rewards and targets made once per batch, minibatches over it.

Shapes: T steps, B environments (all actors' together), N samples of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from rookery.algos.settings import AlgorithmConfig
from rookery.core.errors import UserError
from rookery.core.group import Alone, Group
from rookery.core.names import load_object
from rookery.core.records import Rollout
from rookery.core.schedule import Schedule, check_schedule
from rookery.core.spec import Array, Arrays
from rookery.core.tensors import Tensors, as_tensor
from rookery.nets.normalizer import RunningMoments
from rookery.ops.policy_gradient import masked_mean, standardize
from rookery.ops.returns import discounted_returns, generalized_advantages
from rookery.ops.value import ValueLoss


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(AlgorithmConfig):
    """Settings common to A2C, PPO and IMPALA."""

    whole_envs: ClassVar[bool] = False
    """Whether minibatches are of whole environments even when the policy has no memory."""

    rollouts_per_update: int = 1
    """Rollouts each actor makes for one update."""
    gae_lambda: float = 0.95
    """0: one-step advantage; 1: the return to the end of the episode or rollout."""
    entropy_coef: Schedule = 0.0
    """Weight of the entropy bonus: a number, or a schedule over absolute steps."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    value_loss: ValueLoss = "squared"
    """squared, or smooth_l1."""
    normalize_advantage: bool = True
    """Shift and scale the advantages of each batch to mean 0 and deviation 1."""
    normalize_reward: bool = False
    """Divide rewards by the running deviation of the discounted return."""
    shape_reward: str | None = None
    """package.module:function of rewards [T, B] and the observations [T, B, ...] before each step;
    what it returns is learned from. Reported returns stay raw."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(1, "rollouts_per_update")
        self._check_share("gae_lambda")
        check_schedule("algo.entropy_coef", self.entropy_coef)
        if self.value_coef < 0:
            raise UserError(f"algo.value_coef: must not be negative, got {self.value_coef}")

    @property
    def num_minibatches(self) -> int:
        """Gradient steps per pass over a batch."""
        return 1


@dataclass(slots=True)
class Batch:
    """What a loss reads: leaves ``[T, B, ...]`` (recurrent) or ``[N, ...]`` (feed-forward)."""

    obs: Tensors
    state: Tensors
    reset: Tensor
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor
    mask: Tensor

    def flatten(self) -> Batch:
        """Time and environments joined: ``[T, B, ...]`` to ``[T * B, ...]``."""
        return self._map(lambda leaf: leaf.flatten(0, 1), lambda leaf: leaf)

    def samples(self, index: Tensor) -> Batch:
        """Some samples of a flattened batch."""
        return self._map(lambda leaf: leaf.index_select(0, index), lambda leaf: leaf)

    def columns(self, index: Tensor) -> Batch:
        """Some environments of a batch, whole sequences."""
        return self._map(
            lambda leaf: leaf.index_select(1, index), lambda leaf: leaf.index_select(0, index)
        )

    def _map(self, rows: Any, state: Any) -> Batch:
        kwargs: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "state":
                kwargs["state"] = {name: state(leaf) for name, leaf in value.items()}
            elif field.name == "obs":
                kwargs["obs"] = {name: rows(leaf) for name, leaf in value.items()}
            else:
                kwargs[field.name] = rows(value)
        return Batch(**kwargs)


class RewardNormalizer:
    """Divides rewards by the running deviation of the discounted return of each environment."""

    def __init__(self, gamma: float, device: torch.device, group: Group | None = None) -> None:
        self.gamma = gamma
        self.group = group or Alone()
        self.moments = RunningMoments(()).to(device)
        self.past = torch.zeros(0, device=device)

    def __call__(self, reward: Tensor, reset: Tensor, mask: Tensor) -> Tensor:
        """Normalised rewards ``[T, B]``; updates the statistics, where ``mask``, first."""
        if self.past.shape[0] != reward.shape[1]:
            self.past = torch.zeros_like(reward[0])
        returns = discounted_returns(reward, reset, self.past, self.gamma)
        self.past = returns[-1].clone()
        self.moments.update(returns[mask], self.group.sum_)
        scale = (self.moments.var.float() + 1e-8).rsqrt()
        return torch.clamp(reward * scale, -10.0, 10.0)

    def tensors(self) -> Tensors:
        """All of its state."""
        return {"past": self.past, **dict(self.moments.named_buffers())}

    def load(self, tensors: Tensors) -> None:
        """Continue from :meth:`tensors`."""
        self.past = tensors["past"].to(self.past.device, copy=True)
        for name, buffer in self.moments.named_buffers():
            buffer.copy_(tensors[name])


RewardShape = Callable[[Array, Arrays], Array]
"""From rewards ``[T, B]`` and observations ``[T, B, ...]`` to the rewards to learn from."""


class Targets:
    """Turns the block the actors filled into a :class:`Batch` with advantages and value targets."""

    def __init__(
        self, config: OnPolicyConfig, device: torch.device, group: Group | None = None
    ) -> None:
        self.config = config
        self.device = device
        self.group = group or Alone()
        self.shape: RewardShape | None = (
            load_object(config.shape_reward, "algo.shape_reward") if config.shape_reward else None
        )
        self.reward_normalizer = (
            RewardNormalizer(config.gamma, device, group) if config.normalize_reward else None
        )

    def __call__(self, rollout: Rollout) -> Batch:
        """The batch of ``rollout``; arrays are shared, not copied, on the CPU."""
        reward = self.reward(rollout)
        value = self.tensor(rollout.value)
        mask = self.tensor(rollout.mask).float()
        advantage = generalized_advantages(
            reward,
            value,
            self.tensor(rollout.terminated),
            self.tensor(rollout.truncated),
            self.tensor(rollout.final_value),
            self.config.gamma,
            self.config.gae_lambda,
        )
        target = advantage + value[:-1]
        if self.config.normalize_advantage:
            advantage = standardize(advantage, mask, total=self.group.sum_)
        return Batch(
            obs={name: self.tensor(leaf[:-1]) for name, leaf in rollout.obs.items()},
            state={name: self.tensor(leaf) for name, leaf in rollout.state.items()},
            reset=self.tensor(rollout.reset[:-1]),
            action=self.tensor(rollout.action),
            log_prob=self.tensor(rollout.log_prob),
            value=value[:-1],
            advantage=advantage,
            target=target,
            mask=mask,
        )

    def reward(self, rollout: Rollout) -> Tensor:
        """``[T, B]`` the rewards to learn from."""
        reward = self.tensor(self._clipped(self._shaped(rollout))) * self.config.reward_scale
        return reward if self.reward_normalizer is None else self._normalize(reward, rollout)

    def _shaped(self, rollout: Rollout) -> Array:
        """The rewards to learn from, before they are scaled."""
        if self.shape is None:
            return rollout.reward
        obs = {name: leaf[:-1] for name, leaf in rollout.obs.items()}
        shaped = np.asarray(self.shape(rollout.reward, obs), dtype=np.float32)
        if shaped.shape != rollout.reward.shape:
            raise UserError(
                f"algo.shape_reward: {self.config.shape_reward} returned an array of shape "
                f"{list(shaped.shape)}; it must return one reward per step, "
                f"{list(rollout.reward.shape)}"
            )
        return shaped

    def _clipped(self, reward: Array) -> Array:
        least, most = self.config.reward_min, self.config.reward_max
        if least is None and most is None:
            return reward
        return np.clip(reward, least, most)

    def _normalize(self, reward: Tensor, rollout: Rollout) -> Tensor:
        """One round of rollouts after the other: a block's columns are [rollout, actor, env]."""
        assert self.reward_normalizer is not None
        reset, mask = self.tensor(rollout.reset[:-1]), self.tensor(rollout.mask)
        chunks = [t.chunk(self.config.rollouts_per_update, 1) for t in (reward, reset, mask)]
        return torch.cat([self.reward_normalizer(*part) for part in zip(*chunks, strict=True)], 1)

    def state_tensors(self) -> Tensors:
        """Reward statistics, if there are any."""
        return self.reward_normalizer.tensors() if self.reward_normalizer is not None else {}

    def load_state_tensors(self, tensors: Tensors) -> None:
        """Continue from :meth:`state_tensors`."""
        if self.reward_normalizer is not None and tensors:
            self.reward_normalizer.load(tensors)

    def tensor(self, array: Any) -> Tensor:
        """``array`` where the policy computes."""
        return as_tensor(np.asarray(array), self.device)


ConfigT = TypeVar("ConfigT", bound=OnPolicyConfig)


class OnPolicyAlgorithm(Generic[ConfigT]):
    """What A2C, PPO and IMPALA have in common but for their loss and minibatches."""

    off_policy = False
    """Whether it may learn from what older weights did (formation ``async``)."""

    def __init__(
        self,
        config: ConfigT,
        *,
        recurrent: bool,
        device: torch.device,
        group: Group | None = None,
    ) -> None:
        self.config = config
        self.recurrent = recurrent
        self.targets = Targets(config, device, group)

    def prepare(self, rollout: Rollout) -> Batch:
        """Targets and advantages of what the actors brought."""
        return self.targets(rollout)

    def report(self, batch: Batch) -> dict[str, float]:
        """What the batch as a whole tells."""
        explained = explained_variance(batch.value, batch.target, batch.mask)
        return {"explained_variance": float(explained)}

    def moments(self) -> dict[str, RunningMoments]:
        """Running statistics that all who learn together must have in common."""
        normalizer = self.targets.reward_normalizer
        return {} if normalizer is None else {"reward": normalizer.moments}

    def state_tensors(self) -> Tensors:
        """Reward statistics, if there are any."""
        return self.targets.state_tensors()

    def load_state_tensors(self, tensors: Tensors) -> None:
        """Continue from :meth:`state_tensors`."""
        self.targets.load_state_tensors(tensors)


def minibatches(
    batch: Batch, *, recurrent: bool, num_minibatches: int, rng: np.random.Generator
) -> Iterator[Batch]:
    """Split a batch at random: by samples, or by whole environments when recurrent."""
    if num_minibatches == 1:
        yield batch if recurrent else batch.flatten()
        return
    flat = batch if recurrent else batch.flatten()
    count = batch.mask.shape[1] if recurrent else flat.mask.shape[0]
    order = torch.from_numpy(rng.permutation(count)).to(batch.mask.device)
    for index in order.tensor_split(num_minibatches):
        yield batch.columns(index) if recurrent else flat.samples(index)


def explained_variance(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """How much of the variance of the targets the value estimates explained (1 is all)."""
    residual = target - value
    spread = masked_mean((target - masked_mean(target, mask)) ** 2, mask)
    error = masked_mean((residual - masked_mean(residual, mask)) ** 2, mask)
    return 1.0 - error / (spread + 1e-8)
