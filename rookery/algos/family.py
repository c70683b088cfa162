"""A family of policies, from exploiting to exploring, and who says which of them acts.

Every environment plays a whole episode with one **arm**: a weight beta of the intrinsic reward and
a discount gamma. Where the family has epsilons, an episode's share of random actions is chosen with
the arm, and the choice is among all pairs.

Shapes: N arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from rookery.algos.novelty import NoveltyConfig
from rookery.core.errors import UserError
from rookery.ops.intrinsic import agent57_gammas, family_betas, ngu_gammas

ArmChoice = Literal["fixed", "uniform", "bandit"]
ArmScore = Literal["ucb", "ucb1_tuned"]

_CURVED = 10
"""Arms from which on the discounts of Agent57 have their own curve."""


@dataclass(frozen=True, kw_only=True)
class FamilyConfig:
    """The arms, and how one is chosen for an episode."""

    num_arms: int = 32
    """Policies of the family; the first only exploits (beta 0), the last explores most."""
    beta_max: float = 0.3
    """The largest weight of the intrinsic reward."""
    gamma_min: float = 0.99
    """Discount of the last arm; that of the first is the algorithm's gamma."""
    gamma_middle: float | None = None
    """Discount of the eighth arm, in the curve of Agent57 (from 10 arms on); null: even steps."""
    choice: ArmChoice = "fixed"
    """fixed: environment i has arm i modulo their number; uniform: drawn for each episode; bandit:
    by the returns that each arm had lately."""
    epsilons: tuple[float, ...] = ()
    """Shares of random actions to choose from, together with the arm; none: algo.epsilon holds."""
    history: bool = True
    """Exploring arms see the action before and the rewards it brought."""
    exploit_share: float = 0.0
    """Sequences of a batch that are learned as if the first arm had played them, so that it learns
    from what others found; 0, as in the papers: each arm learns from its own."""
    window: int = 160
    """Episodes that the bandit remembers."""
    random_share: float = 0.5
    """Episodes whose arm the bandit draws at random."""
    score: ArmScore = "ucb"
    """ucb: mean return and a bonus for arms seldom tried; ucb1_tuned: the same with a bonus that
    also goes by how returns vary, of returns scaled to 0..1 within the window."""
    bonus: float = 1.0
    """How much ucb prefers arms it seldom tried, in units of the return."""
    shared: bool = False
    """One bandit for all environments of an actor; false: one each."""

    def __post_init__(self) -> None:
        if self.num_arms < 1:
            raise UserError(f"family.num_arms: must be at least 1, got {self.num_arms}")
        if self.beta_max < 0 or self.bonus < 0:
            raise UserError("family.beta_max and family.bonus must not be negative")
        for name in ("gamma_min", "gamma_middle"):
            gamma = getattr(self, name)
            if gamma is not None and not 0.0 <= gamma < 1.0:
                raise UserError(f"family.{name}: must be at least 0 and below 1, got {gamma:g}")
        for name in ("random_share", "exploit_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(
                    f"family.{name}: must be within 0 and 1, got {getattr(self, name):g}"
                )
        if not all(0.0 <= epsilon <= 1.0 for epsilon in self.epsilons):
            raise UserError(f"family.epsilons: must be within 0 and 1, got {list(self.epsilons)}")
        if self.choice == "bandit" and self.window < self.num_choices:
            raise UserError(
                f"family.window: {self.window} episodes cannot hold one of each of "
                f"{self.num_choices} arms; set it to {self.num_choices} or more, or have fewer"
            )

    @property
    def num_choices(self) -> int:
        """What there is to choose among for an episode: arms, each with each epsilon."""
        return self.num_arms * max(len(self.epsilons), 1)

    def check(self, gamma: float) -> None:
        """Refuse an algorithm's ``gamma`` that the family's do not fall from."""
        middle = self.gamma_min if self.gamma_middle is None else self.gamma_middle
        if not self.gamma_min <= middle <= gamma < 1.0:
            raise UserError(
                f"family.gamma_min: the discounts must fall from algo.gamma, {gamma:g}, to "
                f"{self.gamma_min:g}, and stay below 1; lower gamma_min (and gamma_middle)"
            )

    def betas(self) -> Tensor:
        """``[N]``"""
        return family_betas(self.num_arms, self.beta_max)

    def gammas(self, gamma: float) -> Tensor:
        """``[N]`` from ``gamma`` down."""
        if self.gamma_middle is not None and self.num_arms >= _CURVED:
            return agent57_gammas(self.num_arms, gamma, self.gamma_middle, self.gamma_min)
        return ngu_gammas(self.num_arms, gamma, self.gamma_min)


class Exploring(NamedTuple):
    """How actors explore beside chance."""

    family: FamilyConfig
    novelty: NoveltyConfig
