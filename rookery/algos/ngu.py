"""Never Give Up: Q-learning that is also rewarded for the new, by a family of policies.

Paper: https://arxiv.org/abs/2002.06038.

Deviations: targets are n-step double Q-learning, not Retrace; the first arm does not see the last
action and rewards; a step is rewarded for what it led to, so that an episode's first observation is
in its memory before anything is judged; the mean distance is kept for each environment, the moments
of the predictor's error for each actor; all networks share one optimizer. See docs/exploration.md.

Shapes: T steps of a sequence, N sequences, R rewards that are learned apart: 1, or 2 if separate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rookery.algos.dqn import DQN, Learned, R2D2Config, SequenceBatch
from rookery.algos.family import Exploring, FamilyConfig
from rookery.algos.novelty import NoveltyConfig
from rookery.core.group import Group
from rookery.core.sequence import Sequences
from rookery.core.spec import Array, ArraySpec
from rookery.core.spread import GOLDEN, spread
from rookery.core.tensors import Tensors
from rookery.nets.curious import CuriousQNetwork
from rookery.nets.q_network import ARM, LAST, QNetwork
from rookery.ops.q_learning import learning_mask

BONUS = "bonus"
"""What actors store of each step: the intrinsic reward of what it led to."""


@dataclass(frozen=True, kw_only=True)
class NGUConfig(R2D2Config):
    """R2D2's settings, the family's and what counts as new."""

    separate: bool = False
    """Values of extrinsic and of intrinsic reward by networks of their own, each with its targets;
    false: one network for their sum."""
    family: FamilyConfig = field(default_factory=FamilyConfig)
    """The policies that act."""
    novelty: NoveltyConfig = field(default_factory=NoveltyConfig)
    """The intrinsic reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.family.check(self.gamma)

    @property
    def exploring(self) -> Exploring:
        """By a family of policies, for the new."""
        return Exploring(self.family, self.novelty)

    @property
    def told(self) -> tuple[str, ...]:
        """What actors tell of their episodes beside the return."""
        more = ("epsilon",) if self.family.epsilons else ()
        return ("arm", "exploiting", "intrinsic_reward", *more)

    @property
    def extra(self) -> dict[str, ArraySpec]:
        """The arm that acted, what it saw of the step before, and its bonus, too."""
        arm, real = np.dtype(np.int64), np.dtype(np.float32)
        more = {ARM: ArraySpec((), arm), LAST: ArraySpec((3,), real), BONUS: ArraySpec((), real)}
        return super().extra | more

    @property
    def network_settings(self) -> dict[str, Any]:
        """What :class:`CuriousQNetwork` is built with."""
        return {
            "betas": self.family.betas().tolist(),
            "split": self.separate,
            "rescaled": self.rescale,
            "history": self.family.history,
            "embedding_features": self.novelty.embedding_features,
            "distilled_features": self.novelty.distilled_features,
        }


class NGU(DQN):
    """Values of extrinsic reward and beta times intrinsic reward, together or apart (R = 2)."""

    Config = NGUConfig
    Policy = CuriousQNetwork
    config: NGUConfig

    def __init__(
        self,
        config: NGUConfig,
        *,
        recurrent: bool,
        device: torch.device,
        group: Group | None = None,
    ) -> None:
        super().__init__(config, recurrent=recurrent, device=device, group=group)
        self.betas = config.family.betas().to(device)
        self.gammas = config.family.gammas(config.gamma).to(device)

    def prepare(self, sequences: Sequences, probability: Array, steps: int) -> SequenceBatch:
        """What was sampled, with the arm and what it saw beside the observations."""
        batch = super().prepare(sequences, probability, steps)
        exploited = self._exploited(batch.reset.shape[1], steps)
        batch.extra[ARM] = batch.extra[ARM].masked_fill(exploited, 0)
        batch.obs[ARM] = arm_of(batch.extra).expand(batch.reset.shape)
        batch.obs[LAST] = batch.extra[LAST]
        return batch

    def _exploited(self, num: int, steps: int) -> Tensor:
        """``[N]`` which sequences the first arm learns from, spread evenly, others at each step."""
        share = self.config.family.exploit_share
        begin = steps * GOLDEN % 1.0  # float32 has no fractions left after 8 million
        place = torch.arange(num, device=self.device) * share + begin
        return place % 1.0 < share

    def learn(self, online: QNetwork, target: QNetwork, batch: SequenceBatch) -> Learned:
        """The losses of values and of what tells the new, together."""
        assert isinstance(online, CuriousQNetwork)
        learned = super().learn(online, target, batch)
        loss, metrics = self._novelty_loss(online, batch)
        with torch.no_grad():
            count = batch.mask.sum().clamp(min=1)
            bonus = torch.where(batch.mask, batch.extra[BONUS][:-1], 0.0).sum() / count
        return learned._replace(
            loss=learned.loss + loss,
            metrics=learned.metrics | metrics | {"intrinsic_reward": bonus},
        )

    def lr_scales(self, policy: QNetwork) -> list[tuple[nn.Module, float]]:
        """Of the networks that tell the new."""
        assert isinstance(policy, CuriousQNetwork)
        return [(policy.novelty, self.config.novelty.lr_scale)]

    def _novelty_loss(
        self, policy: CuriousQNetwork, batch: SequenceBatch
    ) -> tuple[Tensor, Tensors]:
        """Guess the action between two observations, and what the random network says of one."""
        config = self.config
        mask = learning_mask(batch.mask, config.burn_in, config.n_step - 1)
        row, column = torch.nonzero(mask, as_tuple=True)
        some = spread(len(row), config.novelty.train_steps * mask.shape[1]).to(row.device)
        row, column = row[some], column[some]
        before = {name: leaf[row, column] for name, leaf in batch.obs.items()}
        after = {name: leaf[row + 1, column] for name, leaf in batch.obs.items()}
        error = policy.novelty_errors(after).mean()
        logits = policy.novelty.action_logits(policy.embed(before), policy.embed(after))
        action = batch.action[row, column]
        inverse = functional.cross_entropy(logits, action)
        right = (logits.detach().argmax(-1) == action).float().mean()
        return error + inverse, {"novelty_error": error.detach(), "inverse_accuracy": right}

    def _reward(self, reward: Tensor, extra: Tensors) -> Tensor:
        """``[T, N]`` what the arm of each sequence acts for."""
        return reward + self.betas[arm_of(extra)] * extra[BONUS][:-1]

    def _rewards(self, reward: Tensor, extra: Tensors) -> Tensor:
        """``[R, T, N]`` the sum, or one and the other."""
        if not self.config.separate:
            return super()._rewards(reward, extra)
        return torch.stack([reward, extra[BONUS][:-1]])

    def _joined(self, error: Tensor, extra: Tensors) -> Tensor:
        """``[T, N]`` the errors of what is acted by."""
        if not self.config.separate:
            return super()._joined(error, extra)
        return error[0] + self.betas[arm_of(extra)] * error[1]

    def _largest_gamma(self) -> float:
        return float(self.gammas.max())

    def _gamma(self, extra: Tensors) -> Tensor:
        """``[N]`` of the arm of each sequence."""
        return self.gammas[arm_of(extra)]


def arm_of(extra: Tensors) -> Tensor:
    """``[N]`` the arm of each sequence: one for all its steps, and 0 in its padding."""
    return extra[ARM].amax(0)
