"""Q-learning from replay: DQN, and with a few settings Ape-X and R2D2.

Papers: https://www.nature.com/articles/nature14236 (DQN),
https://arxiv.org/abs/1509.06461 (double), https://arxiv.org/abs/1511.06581 (dueling),
https://arxiv.org/abs/1511.05952 (prioritised replay), https://arxiv.org/abs/1803.00933 (Ape-X),
https://openreview.net/forum?id=r1lyTjAqYX (R2D2).

Deviations: Adam by default; losses are means over the steps that count; a cut episode bootstraps
from its own last observation; burn-in comes on top of the learned length (see docs/replay.md).

Shapes: T steps of a sequence, N sequences, A actions, R rewards that are learned apart (1 here).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rookery.algos.epsilon import EpsilonConfig
from rookery.algos.family import Exploring
from rookery.algos.settings import AlgorithmConfig
from rookery.core.errors import UserError
from rookery.core.group import Group
from rookery.core.schedule import Schedule, check_schedule, value_at
from rookery.core.sequence import Sequences
from rookery.core.spec import ACTION_MASK, Array, ArraySpec
from rookery.core.tensors import Tensors, as_tensor
from rookery.nets.normalizer import RunningMoments
from rookery.nets.q_network import QNetwork
from rookery.ops.priority import importance_weights, sequence_priorities
from rookery.ops.q_learning import (
    double_q_values,
    learning_mask,
    n_step_targets,
    rescale,
    td_errors,
    unrescale,
)
from rookery.ops.value import ValueLoss, value_loss
from rookery.replay.sequences import SequenceConfig

TAKEN, BEST = "taken", "best"
"""What actors tell of their own values, for first priorities: of the action taken, of the best."""


@dataclass(frozen=True, kw_only=True)
class DQNConfig(AlgorithmConfig):
    """Settings of DQN and of what is made of it."""

    experience: ClassVar[Literal["rollouts", "replay"]] = "replay"
    rollout_steps: int = 1
    """Steps of each environment between two looks at the weights and at the replay ratio."""
    batch_size: int = 32
    """Sequences in one update."""
    steps_per_update: float | None = 4.0
    """Environment steps for each update: the replay ratio; null: neither side waits."""
    learning_starts: int = 1_000
    """Steps in replay before the first update."""
    capacity_steps: int = 100_000
    """Steps that replay keeps."""
    double: bool = True
    """The online network chooses the action whose value the target network gives."""
    n_step: int = 1
    """Rewards in a target before the value of what follows."""
    length: int = 1
    """Steps of a sequence that are learned; more than 1 for recurrent policies."""
    overlap: int = 0
    """Learned steps that a sequence shares with the one before."""
    burn_in: int = 0
    """Steps before the learned ones, which only bring the recurrent state up to date."""
    priority_exponent: float = 0.0
    """Odds of a sequence are its priority to this power; 0: all alike."""
    importance: Schedule = 0.4
    """How far the choice by priorities is made up for in the loss: 0 not at all, 1 in full."""
    eta: float = 0.9
    """A sequence's priority is eta times its largest error and 1 - eta times the mean."""
    actor_priorities: bool = False
    """New sequences get the error of the actor's own values; false: the highest priority so far."""
    rescale: bool = False
    """Learn values on a scale that grows like a square root."""
    loss: ValueLoss = "smooth_l1"
    """smooth_l1, or squared."""
    target_every: int = 1_000
    """Updates after which the target network becomes the online one."""
    target_tau: float | None = None
    """Instead, move the target network this share towards the online one at each update."""
    publish_every: int = 1
    """Updates after which actors may see the new weights."""
    epsilon: EpsilonConfig = field(default_factory=EpsilonConfig)
    """The share of random actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(
            1, "batch_size", "learning_starts", "capacity_steps", "target_every", "publish_every"
        )
        self._check_share("eta")
        check_schedule("algo.importance", self.importance)
        if self.steps_per_update is not None and not 0 < self.steps_per_update < math.inf:
            raise UserError(
                f"algo.steps_per_update: must be positive or null, got {self.steps_per_update:g}"
            )
        if self.target_tau is not None and not 0.0 < self.target_tau <= 1.0:
            raise UserError(f"algo.target_tau: must be within 0 and 1, got {self.target_tau:g}")
        if self.learning_starts > self.capacity_steps:
            raise UserError(
                f"algo.learning_starts: {self.learning_starts} is more than algo.capacity_steps, "
                f"{self.capacity_steps}: replay would never hold so many"
            )
        if self.priority_exponent < 0:
            raise UserError(
                f"algo.priority_exponent: must not be negative, got {self.priority_exponent:g}"
            )
        self.sequence  # noqa: B018  refuses what cannot be

    @property
    def exploring(self) -> Exploring | None:
        """How actors explore beside chance; None: not at all."""
        return None

    @property
    def told(self) -> tuple[str, ...]:
        """What actors tell of their episodes beside the return, for metrics ``rollout/info_*``."""
        return ()

    def mean_epsilon(self, steps: int, num_envs: int) -> float | None:
        """The mean share of random actions over the environments of the run; None where each
        episode chooses its own."""
        if self.exploring is not None and self.exploring.family.epsilons:
            return None
        return self.epsilon.mean(steps, num_envs)

    @property
    def sequence(self) -> SequenceConfig:
        """The shape of a sequence."""
        return SequenceConfig(
            length=self.length, overlap=self.overlap, burn_in=self.burn_in, n_step=self.n_step
        )

    @property
    def extra(self) -> dict[str, ArraySpec]:
        """What actors store with each step beside what the environment said."""
        value = ArraySpec((), np.dtype(np.float32))
        return {TAKEN: value, BEST: value} if self.actor_priorities else {}


class Learned(NamedTuple):
    """What one batch gave."""

    loss: Tensor
    metrics: Tensors
    priorities: Tensor
    """``[N]``"""
    num_steps: Tensor
    """Steps that the loss is a mean over."""


@dataclass(slots=True)
class SequenceBatch:
    """Sequences where the networks compute; see :class:`~rookery.core.sequence.Sequences`."""

    obs: Tensors
    reset: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    mask: Tensor
    state: Tensors
    extra: Tensors
    weight: Tensor
    """``[N]`` importance weights."""

    def rows(self, start: int, stop: int | None = None) -> Tensors:
        """Observations of some rows."""
        return {name: leaf[start:stop] for name, leaf in self.obs.items()}

    def columns(self, some: slice) -> SequenceBatch:
        """Some sequences."""

        def of(leaves: Tensors) -> Tensors:
            return {name: leaf[:, some] for name, leaf in leaves.items()}

        return SequenceBatch(
            obs=of(self.obs),
            reset=self.reset[:, some],
            action=self.action[:, some],
            reward=self.reward[:, some],
            terminated=self.terminated[:, some],
            truncated=self.truncated[:, some],
            mask=self.mask[:, some],
            state={name: leaf[some] for name, leaf in self.state.items()},
            extra=of(self.extra),
            weight=self.weight[some],
        )


class DQN:
    """The loss; networks and optimizer are the learner's."""

    Config = DQNConfig
    Policy: ClassVar[type[QNetwork]] = QNetwork
    off_policy = True

    def __init__(
        self,
        config: DQNConfig,
        *,
        recurrent: bool,
        device: torch.device,
        group: Group | None = None,
    ) -> None:
        self.config, self.recurrent, self.device = config, recurrent, device
        if config.burn_in > config.length:
            raise UserError(
                f"algo.burn_in: {config.burn_in} steps are more than the sequence has to learn "
                f"(algo.length, {config.length}); set burn_in to {config.length} or less"
            )
        if config.burn_in and not recurrent:
            raise UserError(
                f"algo.burn_in: {config.burn_in} steps bring a recurrent state up to date, and "
                "this policy has none; set policy.core to lstm or gru, or burn_in to 0"
            )
        if recurrent and config.length == 1 and not config.burn_in:
            raise UserError(
                "algo.length: a recurrent policy learns nothing to remember from one step; set "
                "algo.length, and algo.burn_in, to 10 or more"
            )

    def prepare(self, sequences: Sequences, probability: Array, steps: int) -> SequenceBatch:
        """What was sampled, as tensors."""

        def tensors(arrays: dict[str, Array]) -> Tensors:
            return {name: self._tensor(array) for name, array in arrays.items()}

        beta = value_at(self.config.importance, steps)
        return SequenceBatch(
            obs=tensors(sequences.obs),
            reset=self._tensor(sequences.reset),
            action=self._tensor(sequences.action),
            reward=self._tensor(sequences.reward),
            terminated=self._tensor(sequences.terminated),
            truncated=self._tensor(sequences.truncated),
            mask=self._tensor(sequences.mask),
            state=tensors(sequences.state),
            extra=tensors(sequences.extra),
            weight=importance_weights(self._tensor(probability), beta).float(),
        )

    def learn(self, online: QNetwork, target: QNetwork, batch: SequenceBatch) -> Learned:
        """The scalar to minimise, scalars to report, and the priorities of the sequences."""
        flat = self.config.length == 1 and not self.recurrent
        value, goal, mask = (self._flat if flat else self._unrolled)(online, target, batch)
        error = self._joined(td_errors(value, goal, mask), batch.extra)
        losses = value_loss(torch.where(mask, value, goal), goal, self.config.loss)
        count = mask.sum().clamp(min=1)
        loss = (losses * batch.weight).sum() / count
        with torch.no_grad():
            metrics = {
                "loss": loss.detach(),
                "value_mean": torch.where(mask, value[0], 0.0).sum() / count,
                "target_mean": torch.where(mask, goal[0], 0.0).sum() / count,
                "error_mean": error.abs().sum() / count,
                "reward_peak": self._rewards(batch.reward, batch.extra).abs().amax(),
            }
        return Learned(loss, metrics, sequence_priorities(error, mask, self.config.eta), count)

    def most_value(self, reward: float) -> float:
        """What rewards of at most ``reward`` can add up to, on the scale that values have."""
        gamma = self._largest_gamma()
        if gamma == 1.0:
            return math.inf
        most = torch.tensor(reward / (1.0 - gamma))
        return float(rescale(most) if self.config.rescale else most)

    def _largest_gamma(self) -> float:
        return self.config.gamma

    def moments(self) -> dict[str, RunningMoments]:
        """Running statistics that learners have in common: none beside the policy's."""
        return {}

    def lr_scales(self, policy: QNetwork) -> list[tuple[nn.Module, float]]:
        """Modules within ``policy`` that learn at another rate, and how many times that."""
        return []

    def first_priorities(self, sequences: Sequences) -> Array:
        """``[N]`` of new ``sequences``, by the values that the actor had when it acted."""
        extra = {name: self._tensor(array) for name, array in sequences.extra.items()}
        mask = self._tensor(sequences.mask)
        value = self._plain(extra[BEST])
        told = (sequences.reward, sequences.terminated, sequences.truncated)
        reward, terminated, truncated = (self._tensor(array) for array in told)
        goal = self._goal(
            self._reward(reward, extra), terminated, truncated, value, self._gamma(extra)
        )
        learned = learning_mask(mask, self.config.burn_in, self.config.n_step - 1)
        error = td_errors(extra[TAKEN][:-1], goal, learned)
        priorities: Array = sequence_priorities(error, learned, self.config.eta).cpu().numpy()
        return priorities

    def _flat(
        self, online: QNetwork, target: QNetwork, batch: SequenceBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values and targets ``[R, 1, N]``, mask ``[1, N]``, of a step each, n steps looked ahead.

        Of the steps between, only the rewards matter: networks see the first observation and the
        one that the target bootstraps from.
        """
        total, num = batch.reward.shape
        taken = batch.mask.sum(0)  # up to the end of the episode, at most n
        column = torch.arange(num, device=taken.device)
        first = {name: leaf[0] for name, leaf in batch.obs.items()}
        last = {name: leaf[taken, column] for name, leaf in batch.obs.items()}
        chosen = online.parts(first)
        with torch.no_grad():
            aims = target.parts(last)
            choice = online.mixed(online.parts(last) if self.config.double else aims, last)
            value = torch.zeros((len(aims), total + 1, num), device=taken.device)
            value[:, taken, column] = self._best(choice, aims, last)
            goal = self._targets(batch, value)[:, :1]
        return _of(chosen, batch.action[0])[:, None], goal, batch.mask[:1]

    def _unrolled(
        self, online: QNetwork, target: QNetwork, batch: SequenceBatch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values and targets ``[R, T - burn_in, N]``, mask without R, of whole sequences."""
        begin = self.config.burn_in
        values = self._replayed(online, batch)
        with torch.no_grad():
            aims = self._replayed(target, batch)
            seen = batch.rows(begin)
            choice = online.mixed(values if self.config.double else aims, seen)
            # The rows of burn-in have no targets.
            value = functional.pad(self._best(choice, aims, seen), (0, 0, begin, 0))
            goal = self._targets(batch, value)[:, begin:]
        mask = learning_mask(batch.mask, begin, self.config.n_step - 1)[begin:]
        return _of(values[:, :-1], batch.action[begin:]), goal, mask

    def _replayed(self, network: QNetwork, batch: SequenceBatch) -> Tensor:
        """``[R, T + 1 - burn_in, N, A]``; burn-in brings the state up to date, nothing more."""
        begin, state = self.config.burn_in, batch.state
        if begin:
            with torch.no_grad():
                state = network.remember(batch.rows(0, begin), state, batch.reset[:begin])
        return network.unroll(batch.rows(begin), state, batch.reset[begin:])

    def _best(self, choice: Tensor, aims: Tensor, obs: Tensors) -> Tensor:
        """``[R, ...]`` what ``aims`` ``[R, ..., A]`` say of the action of the best ``choice``."""
        return self._plain(double_q_values(choice.expand_as(aims), aims, _legal(obs)))

    def _targets(self, batch: SequenceBatch, value: Tensor) -> Tensor:
        """``[R, T, N]`` of values ``[R, T + 1, N]``."""
        rewards, gamma = self._rewards(batch.reward, batch.extra), self._gamma(batch.extra)
        goals = [
            self._goal(reward, batch.terminated, batch.truncated, one, gamma)
            for reward, one in zip(rewards, value, strict=True)
        ]
        return torch.stack(goals)

    def _reward(self, reward: Tensor, extra: Tensors) -> Tensor:
        """``[T, N]`` what is acted for."""
        return reward

    def _rewards(self, reward: Tensor, extra: Tensors) -> Tensor:
        """``[R, T, N]`` what is learned apart."""
        return self._reward(reward, extra)[None]

    def _gamma(self, extra: Tensors) -> Tensor | float:
        """The discount, one for all or ``[N]``."""
        return self.config.gamma

    def _joined(self, error: Tensor, extra: Tensors) -> Tensor:
        """``[T, N]`` the errors of what is acted by, of those ``[R, T, N]`` of what is learned."""
        return error[0]

    def _goal(
        self,
        reward: Tensor,
        terminated: Tensor,
        truncated: Tensor,
        value: Tensor,
        gamma: Tensor | float,
    ) -> Tensor:
        """``[T, N]``; what follows an end is the episode's own last observation, one row on."""
        goal = n_step_targets(
            reward, value, terminated, truncated, value[1:], gamma, self.config.n_step
        )
        return rescale(goal) if self.config.rescale else goal

    def _plain(self, value: Tensor) -> Tensor:
        """Values as they are, of what the networks say."""
        return unrescale(value) if self.config.rescale else value

    def _tensor(self, array: Array) -> Tensor:
        return as_tensor(array, self.device)


def _legal(obs: Tensors) -> Tensor | None:
    mask = obs.get(ACTION_MASK)
    return None if mask is None else mask.bool()


def _of(values: Tensor, action: Tensor) -> Tensor:
    """``[R, ...]`` the values ``[R, ..., A]`` of ``action`` ``[...]``."""
    index = action.expand(values.shape[:-1])[..., None]
    return values.gather(-1, index).squeeze(-1)


@dataclass(frozen=True, kw_only=True)
class ApeXConfig(DQNConfig):
    """DQN's settings as Ape-X has them."""

    batch_size: int = 512
    n_step: int = 3
    priority_exponent: float = 0.6
    actor_priorities: bool = True
    target_every: int = 2_500
    epsilon: EpsilonConfig = field(
        default_factory=lambda: EpsilonConfig(kind="ladder", start=0.4, end=0.0)
    )


class ApeX(DQN):
    """Many actors, each with its own share of random actions, and prioritised replay."""

    Config = ApeXConfig


@dataclass(frozen=True, kw_only=True)
class R2D2Config(ApeXConfig):
    """DQN's settings as R2D2 has them."""

    batch_size: int = 64
    gamma: float = 0.997
    n_step: int = 5
    length: int = 40
    burn_in: int = 40
    priority_exponent: float = 0.9
    importance: Schedule = 0.6
    rescale: bool = True
    loss: ValueLoss = "squared"


class R2D2(DQN):
    """Ape-X with a memory: recurrent policies, their stored state, and burn-in."""

    Config = R2D2Config
