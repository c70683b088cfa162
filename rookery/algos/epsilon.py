"""How often each environment acts at random.

Shapes: B environments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rookery.core.errors import UserError
from rookery.core.spec import Array

EpsilonKind = Literal["linear", "exponential", "ladder"]


@dataclass(frozen=True, kw_only=True)
class EpsilonConfig:
    """The share of random actions, over steps of the run or over environments."""

    kind: EpsilonKind = "linear"
    """linear: from start to end within steps; exponential: start, times factor at each step of the
    run, not below end; ladder: each environment has its own, start^(1 + power i / (N - 1)), not
    below end, all the time."""
    start: float = 1.0
    """The first share, or the largest of a ladder."""
    end: float = 0.05
    """The least."""
    steps: int = 10_000
    """Steps of the run after which linear reaches its end."""
    factor: float = 0.99999975
    """What exponential multiplies by at each step."""
    power: float = 7.0
    """How steep a ladder is."""

    def __post_init__(self) -> None:
        for name in ("start", "end", "factor"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(
                    f"epsilon.{name}: must be within 0 and 1, got {getattr(self, name)}"
                )
        if self.end > self.start:
            raise UserError(f"epsilon.end: {self.end:g} is above epsilon.start, {self.start:g}")
        if self.steps < 1 or self.power < 0:
            raise UserError("epsilon.steps must be at least 1, epsilon.power not negative")

    def at(self, steps: int, streams: Array, num_streams: int) -> Array:
        """``[B]`` for the environments ``streams`` of ``num_streams``, at a step of the run."""
        if self.kind == "ladder":
            place = streams / max(num_streams - 1, 1)
            return np.maximum(self.start ** (1.0 + self.power * place), self.end)
        if self.kind == "linear":
            share = self.start + (self.end - self.start) * min(steps / self.steps, 1.0)
        else:
            share = max(self.start * self.factor**steps, self.end)
        return np.full(len(streams), share)

    def mean(self, steps: int, num_streams: int) -> float:
        """The mean over all environments, at a step of the run."""
        return float(self.at(steps, np.arange(num_streams), num_streams).mean())
