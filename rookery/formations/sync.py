"""Formation ``sync``: one round at a time. All actors act, the learner learns, all get new weights.

A2C and PPO; the synchronous A2C of mpia2c.
"""

from __future__ import annotations

from dataclasses import dataclass

from rookery.formations.settings import FormationConfig


@dataclass(frozen=True, kw_only=True)
class SyncConfig(FormationConfig):
    """One round at a time: all actors act, the learner learns, all get the new weights."""

    learner_threads: int = 1
    """Compute threads of the learner."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("learner_threads")


class Sync:
    """The formation."""

    Config = SyncConfig
