"""Formation ``replay``: actors fill a replay table, from which the learners take what they learn.

DQN, Ape-X, R2D2, NGU and Agent57; MarltasCore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rookery.formations.settings import FormationConfig


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(FormationConfig):
    """Actors fill a replay table, from which the learner takes what it learns from."""

    off_policy: ClassVar[bool] = True
    experience: ClassVar[str] = "replay"
    averages: ClassVar[bool] = False

    num_learners: int = 1
    """Learners around one set of weights; more than one needs the local engine."""
    lockstep: bool = True
    """Learners divide each batch and step with the mean of their gradients; false: each learns from
    batches of its own and steps the weights without waiting for the others."""
    learner_threads: int = 1
    """Compute threads of each learner."""
    save_replay: bool = True
    """Checkpoints hold the replay too; false: a resumed run fills it anew before it learns on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("num_learners", "learner_threads")


class Replay:
    """The formation."""

    Config = ReplayConfig
