"""Settings that every algorithm has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from rookery.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    """What actors and engines ask of an algorithm's settings, whichever it is."""

    experience: ClassVar[Literal["rollouts", "replay"]] = "rollouts"
    """What it learns from: rollouts as they come, or sequences out of replay."""

    rollout_steps: int = 32
    """Steps of each environment in one rollout (T)."""
    gamma: float = 0.99
    """Discount of future reward."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this for learning; reported returns stay raw."""
    reward_min: float | None = None
    """Smaller rewards are learned from as this one, before they are scaled; null: no floor."""
    reward_max: float | None = None
    """Larger rewards are learned from as this one, before they are scaled; null: no ceiling."""

    def __post_init__(self) -> None:
        self._check_at_least(1, "rollout_steps")
        self._check_share("gamma")
        if self.reward_scale <= 0:
            raise UserError(f"algo.reward_scale: must be positive, got {self.reward_scale}")
        least, most = self.reward_min, self.reward_max
        if least is not None and most is not None and least >= most:
            raise UserError(f"algo.reward_min: {least:g} must be below algo.reward_max, {most:g}")

    @property
    def network_settings(self) -> dict[str, Any]:
        """What the policy is built with beside ``policy.*``: plain values, as bundles keep them."""
        return {}

    def _check_at_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                raise UserError(f"algo.{name}: must be at least {least}, got {getattr(self, name)}")

    def _check_share(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"algo.{name}: must be within 0 and 1, got {getattr(self, name)}")
