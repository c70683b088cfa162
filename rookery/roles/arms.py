"""Which arm of a family each environment plays, and with which epsilon, an episode at a time.

Shapes: B environments, G bandits (one for each environment, or one), W episodes in their windows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rookery.algos.family import FamilyConfig
from rookery.core.errors import UserError
from rookery.core.spec import Array, Arrays
from rookery.ops.bandit import (
    choose_arms,
    push_outcome,
    scaled_returns,
    ucb1_tuned_scores,
    ucb_scores,
    window_statistics,
)


class Arms:
    """The arms of B environments, changed only where an episode ends.

    ::

        arms.current, arms.epsilon   # [B], what to act with
        arms.end(rows, returns)      # whole episodes ended there: others may be chosen
    """

    def __init__(self, config: FamilyConfig, streams: Array, rng: np.random.Generator) -> None:
        self.config, self.rng = config, rng
        num_bandits = 1 if config.shared else len(streams)
        window = (num_bandits, config.window)
        self.played = torch.full(window, -1, dtype=torch.int64)
        """``[G, W]`` choices of the last episodes, oldest first; -1: none yet."""
        self.returned = torch.zeros(window, dtype=torch.float64)
        """``[G, W]`` what they returned."""
        self.chosen: Array = streams % config.num_choices
        """``[B]`` an arm, and an epsilon if there are any: all epsilons of the first arm are
        first, then those of the second, so that few environments with fixed ones have them all."""
        if config.choice != "fixed":
            self._choose(np.arange(len(streams)))

    @property
    def current(self) -> Array:
        """``[B]`` the arms."""
        return self.chosen // max(len(self.config.epsilons), 1)

    @property
    def epsilon(self) -> Array | None:
        """``[B]`` the shares of random actions; None if the family has none of its own."""
        epsilons = self.config.epsilons
        return np.array(epsilons)[self.chosen % len(epsilons)] if epsilons else None

    def end(self, rows: Array, returns: Array) -> None:
        """Whole episodes of ``rows`` ended with the raw ``returns``; each counts once."""
        if self.config.choice == "fixed" or not len(rows):
            return
        if self.config.choice == "bandit":
            for row, total in zip(rows, returns, strict=True):
                self._count(self._bandit(row), int(self.chosen[row]), float(total))
        self._choose(rows)

    def _bandit(self, row: int) -> int:
        return 0 if self.config.shared else int(row)

    def _count(self, bandit: int, arm: int, total: float) -> None:
        pushed = push_outcome(
            self.played[bandit],
            self.returned[bandit],
            torch.tensor(arm),
            torch.tensor(total, dtype=torch.float64),
        )
        self.played[bandit], self.returned[bandit] = pushed

    def _choose(self, rows: Array) -> None:
        """New arms for ``rows``."""
        config = self.config
        explore, pick = torch.from_numpy(self.rng.random((2, len(rows))))
        if config.choice == "uniform":
            scores = torch.zeros((len(rows), config.num_choices))
        else:
            scores = self._scores(torch.tensor([self._bandit(row) for row in rows]))
        self.chosen = self.chosen.copy()
        self.chosen[rows] = choose_arms(scores, explore, pick, config.random_share).numpy()

    def _scores(self, of: Tensor) -> Tensor:
        """``[K, choices]`` of the bandits ``of`` ``[K]``."""
        played, returned, num = self.played[of], self.returned[of], self.config.num_choices
        if self.config.score == "ucb1_tuned":
            scaled = scaled_returns(played, returned)
            return ucb1_tuned_scores(*window_statistics(played, scaled, num))
        counts, means, _ = window_statistics(played, returned, num)
        return ucb_scores(counts, means, self.config.bonus)

    def save(self) -> Arrays:
        """Arrays that :meth:`load` goes on from."""
        return {
            "arm": self.chosen,
            "num_choices": np.array(self.config.num_choices),
            "played": self.played.numpy().copy(),
            "returned": self.returned.numpy().copy(),
        }

    def load(self, arrays: Arrays) -> None:
        """Go on from :meth:`save`."""
        num = int(arrays.get("num_choices", np.array(self.config.num_choices)))
        if num != self.config.num_choices:
            raise UserError(
                f"its family had {num} arms and epsilons to choose among, this one has "
                f"{self.config.num_choices}"
            )
        if self.config.choice != "fixed":  # else they follow from the environments' numbers
            self.chosen = arrays["arm"]
        self.played = torch.from_numpy(arrays["played"])
        self.returned = torch.from_numpy(arrays["returned"])
