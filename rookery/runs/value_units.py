"""From the value that a policy learned to the units of the score.

::

    units = value_units(config.to_tree(), reward_deviation=None)
    units.of(value)                    # the discounted sum of rewards that it stands for
    units.rewards                      # "clipped": of what is left of them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rookery.algos.algorithm import block_name
from rookery.ops.q_learning import unrescale


@dataclass(frozen=True, slots=True)
class ValueUnits:
    """What a run's rewards became before they were learned from."""

    scale: float = 1.0
    """What they were multiplied by."""
    rescaled: bool = False
    """Whether values are learned on a scale that grows like a square root."""
    rewards: str = ""
    """What was done to them that cannot be undone: '' if nothing, else such as 'clipped'."""
    gamma: float | None = None
    """Discount of each step, if it is known."""

    def of(self, learned: float) -> float:
        """The discounted sum of rewards that a learned value stands for."""
        if self.rescaled:
            learned = float(unrescale(torch.tensor(learned, dtype=torch.float64)))
        return learned / self.scale


def value_units(settings: Mapping[str, Any], reward_deviation: float | None) -> ValueUnits:
    """Those of a run with ``settings``, as its config.yaml has them.

    ``reward_deviation`` is what ``normalize_reward`` divides by in the end; None if not known.
    """
    own = _block(settings)
    if own is None:
        return ValueUnits(rewards="unknown")
    scale, lost = float(own.get("reward_scale", 1.0)), []
    if own.get("shape_reward"):
        lost.append("shaped")
    if own.get("reward_min") is not None or own.get("reward_max") is not None:
        lost.append("clipped")
    if own.get("normalize_reward"):
        if reward_deviation is None:
            lost.append("normalised")
        else:
            scale /= reward_deviation
    return ValueUnits(scale, bool(own.get("rescale")), " and ".join(lost), own.get("gamma"))


def normalizes_rewards(settings: Mapping[str, Any]) -> bool:
    """Whether a run with ``settings`` learns from rewards in units of their own deviation."""
    return bool((_block(settings) or {}).get("normalize_reward"))


def _block(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The algorithm's own; None in a bundle that does not tell them."""
    return settings.get(block_name(str(settings.get("algo", ""))))
