"""Networks that tell what is new: random network distillation and a controllable-state embedding.

Shapes: N observations, A actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rookery.core.tensors import Tensors

HIDDEN = 128
"""Width of the layer that guesses an action from two embeddings."""


class Novelty(nn.Module):
    """What actors need for their bonus, and learners train.

    ::

        novelty.embedding(encoded)             # [N, embedding_features]
        novelty.action_logits(before, after)   # [N, A] of the embeddings of two observations
        novelty.errors(encoded)                # [N] what the predictor does not know yet
    """

    def __init__(
        self,
        build_torso: Callable[[], Any],
        num_actions: int,
        *,
        embedding_features: int,
        distilled_features: int,
    ) -> None:
        super().__init__()
        self.embedding = _Projected(build_torso(), embedding_features)
        self.inverse = nn.Sequential(
            nn.Linear(2 * embedding_features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, num_actions)
        )
        self.target = _Projected(build_torso(), distilled_features).requires_grad_(False)
        self.predictor = _Projected(build_torso(), distilled_features)

    def action_logits(self, before: Tensor, after: Tensor) -> Tensor:
        """Which action led from one embedding to the next (NGU, section 2)."""
        logits: Tensor = self.inverse(torch.cat([before, after], -1))
        return logits

    def errors(self, encoded: Tensors) -> Tensor:
        """Mean squared error of the predictor; falls where it has been trained."""
        with torch.no_grad():
            aim = self.target(encoded)
        error: Tensor = ((self.predictor(encoded) - aim) ** 2).mean(-1)
        return error


class _Projected(nn.Module):
    """A torso and a linear layer behind it."""

    def __init__(self, torso: Any, features: int) -> None:
        super().__init__()
        self.torso = torso
        self.project = nn.Linear(torso.out_features, features)

    def forward(self, encoded: Tensors) -> Tensor:
        """``[N, features]``"""
        projected: Tensor = self.project(self.torso(encoded))
        return projected
