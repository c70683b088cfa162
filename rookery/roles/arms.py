"""Which arm of a family each environment plays, an episode at a time.

Shapes: B environments, G bandits (one for each environment, or one), W episodes in their windows.
"""

from __future__ import annotations

import numpy as np
import torch

from rookery.algos.family import FamilyConfig
from rookery.core.spec import Array, Arrays
from rookery.ops.bandit import choose_arms, push_outcome, ucb_scores, window_statistics


class Arms:
    """The arms of B environments, changed only where an episode ends.

    ::

        arms.current                 # [B], what to act with
        arms.end(rows, returns)      # whole episodes ended there: others may be chosen
    """

    def __init__(self, config: FamilyConfig, streams: Array, rng: np.random.Generator) -> None:
        self.config, self.rng = config, rng
        num_bandits = 1 if config.shared else len(streams)
        window = (num_bandits, config.window)
        self.played = torch.full(window, -1, dtype=torch.int64)
        """``[G, W]`` arms of the last episodes, oldest first; -1: none yet."""
        self.returned = torch.zeros(window, dtype=torch.float64)
        """``[G, W]`` what they returned."""
        self.current: Array = streams % config.num_arms
        if config.choice != "fixed":
            self._choose(np.arange(len(streams)))

    def end(self, rows: Array, returns: Array) -> None:
        """Whole episodes of ``rows`` ended with the raw ``returns``; each counts once."""
        if self.config.choice == "fixed" or not len(rows):
            return
        if self.config.choice == "bandit":
            for row, total in zip(rows, returns, strict=True):
                self._count(self._bandit(row), int(self.current[row]), float(total))
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
            scores = torch.zeros((len(rows), config.num_arms))
        else:
            of = torch.tensor([self._bandit(row) for row in rows])
            counts, means, _ = window_statistics(
                self.played[of], self.returned[of], config.num_arms
            )
            scores = ucb_scores(counts, means, config.bonus)
        self.current = self.current.copy()
        self.current[rows] = choose_arms(scores, explore, pick, config.random_share).numpy()

    def save(self) -> Arrays:
        """Arrays that :meth:`load` goes on from."""
        return {
            "arm": self.current,
            "played": self.played.numpy().copy(),
            "returned": self.returned.numpy().copy(),
        }

    def load(self, arrays: Arrays) -> None:
        """Go on from :meth:`save`."""
        self.current = arrays["arm"]
        self.played = torch.from_numpy(arrays["played"])
        self.returned = torch.from_numpy(arrays["returned"])
