"""Weights that several learners hold together, each stepping a part of them.

All compute gradients of the same weights. Were each to add up and step the whole vector, it would
pass through every core's cache several times an update, which for small batches takes longer than
computing them. So weights, gradients and statistics lie in shared memory: each learner adds up its
own part of all gradients, steps that part, and all see the result.

Shapes: P parameters, L learners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rookery.core.group import Group, share_of
from rookery.core.ports import End, Kind
from rookery.core.spec import Arrays, ArraySpec, under
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig, statistic_names
from rookery.transport.local_port import LocalPort
from rookery.transport.shared_group import SharedGroup, group_specs

_STATISTIC = "statistic/"
_GROUP, _SHARDS = "group/", "shards/"
WORDS_BYTES = 4096
"""Room for what learners tell each other: metrics, the number of a slot."""
_HERE = np.zeros(1)


def shard_specs(
    num_learners: int, num_params: int, optimizer: OptimizerConfig
) -> dict[str, ArraySpec]:
    """The arrays of :class:`Shards`."""
    real = np.dtype(np.float32)
    statistics = [f"{_STATISTIC}{name}" for name in statistic_names(optimizer)]
    return {
        "gradients": ArraySpec((num_learners, num_params), real),
        **{name: ArraySpec((num_params,), real) for name in ("weights", *statistics)},
    }


class Shards:
    """One learner's view of what they share."""

    def __init__(self, arrays: Arrays, group: Group) -> None:
        self.group = group
        self.weights = torch.from_numpy(arrays["weights"])
        self.gradients = torch.from_numpy(arrays["gradients"])
        self.own = share_of(len(self.weights), group)
        """The part of the vector that this learner steps."""
        self.statistics = {
            name.removeprefix(_STATISTIC): torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith(_STATISTIC)
        }

    @property
    def gradient(self) -> Tensor:
        """``[P]`` where this learner puts its gradient."""
        return self.gradients[self.group.rank]

    def meet(self) -> None:
        """Go on when all are here."""
        self.group.first(_HERE)

    def added(self) -> Tensor:
        """This learner's part of the sum of all gradients, in place of its own."""
        total = self.gradient[self.own]
        for rank in range(self.group.size):
            if rank != self.group.rank:
                total += self.gradients[rank, self.own]
        return total


class ShardedOptimizer(FlatOptimizer):
    """Steps weights that all learners of a group hold, each its part; they meet three times."""

    def __init__(
        self,
        config: OptimizerConfig,
        params: FlatParams,
        shards: Shards,
        lr_scales: Sequence[tuple[slice, float]] = (),
    ) -> None:
        self.config, self.params, self.shards = config, params, shards
        self.lr_scales = [(part, scale) for part, scale in lr_scales if scale != 1.0]
        self.state = shards.statistics | {"step": torch.zeros(())}

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Apply the sum of all gradients with learning rate ``lr``; its norm before clipping."""
        shards = self.shards
        shards.meet()  # all gradients are there
        grad = shards.added()
        norm = shards.group.sum_(torch.dot(grad, grad)[None]).sqrt()[0]
        if self.config.max_grad_norm is not None:
            grad.mul_(torch.clamp(self.config.max_grad_norm / (norm + 1e-6), max=1.0))
        self._step_parts(lr, grad, self.params.data, shards.own)
        shards.meet()  # all weights are stepped
        return norm


@dataclass(frozen=True)
class ShardsPort(LocalPort):
    """Weights that several learners hold together, each stepping a part of them."""

    name: ClassVar[str] = "shards"
    kind: ClassVar[Kind] = "memory"
    about: ClassVar[str] = "weights held together, each learner stepping its part"

    role: str
    num_learners: int
    num_params: int
    optimizer: OptimizerConfig

    def traffic(self) -> tuple[int, str]:
        """A gradient."""
        return self.num_params * 4, "update"

    def layout(self) -> dict[str, ArraySpec]:
        """A group for small words, and the shards."""
        group = group_specs(self.num_learners, WORDS_BYTES)
        shards = shard_specs(self.num_learners, self.num_params, self.optimizer)
        return {
            **{f"{_GROUP}{name}": spec for name, spec in group.items()},
            **{f"{_SHARDS}{name}": spec for name, spec in shards.items()},
        }

    def client(self, end: End) -> Shards:
        """A learner's view."""
        group = SharedGroup(under(_GROUP, end.arrays), end, role=self.role)
        return Shards(under(_SHARDS, end.arrays), group)

    def server(self, end: End) -> Shards:
        """Learners serve each other."""
        return self.client(end)
