"""Agent57: NGU with values of extrinsic and intrinsic reward apart, and a bandit that chooses arms.

Paper: https://arxiv.org/abs/2003.13350.

Deviations: those of :mod:`rookery.algos.ngu`; evaluation plays the arm that only exploits, not the
one a bandit of its own likes best; priorities add the errors of both networks as they are learned,
rescaled or not. See docs/exploration.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rookery.algos.family import FamilyConfig
from rookery.algos.ngu import NGU, NGUConfig


@dataclass(frozen=True, kw_only=True)
class Agent57Config(NGUConfig):
    """NGU's settings as Agent57 has them."""

    separate: bool = True
    gamma: float = 0.9999
    family: FamilyConfig = field(
        default_factory=lambda: FamilyConfig(choice="bandit", gamma_middle=0.997)
    )


class Agent57(NGU):
    """Two networks, each with targets of its own, for the action that their mixture likes best."""

    Config = Agent57Config
    config: Agent57Config
