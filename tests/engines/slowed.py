"""An algorithm slowed on purpose, as ``tests.engines.slowed:Slowed``."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from rookery.algos.impala import IMPALA, IMPALAConfig, Traces
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic


@dataclass(frozen=True, kw_only=True)
class SlowedConfig(IMPALAConfig):
    """IMPALA's settings, and a pause."""

    pause_secs: float = 0.0
    """How long each loss sleeps."""


class Slowed(IMPALA):
    """IMPALA that takes its time."""

    Config = SlowedConfig
    config: SlowedConfig

    def loss(self, policy: ActorCritic, batch: Traces, steps: int) -> tuple[Tensor, Tensors]:
        time.sleep(self.config.pause_secs)
        return super().loss(policy, batch, steps)
