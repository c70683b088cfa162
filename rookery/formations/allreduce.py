"""Formation ``allreduce``: every worker acts and learns; all step with the mean of their gradients.

Data parallelism: the weights are the same everywhere, after every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rookery.formations.settings import FormationConfig


@dataclass(frozen=True, kw_only=True)
class AllreduceConfig(FormationConfig):
    """Every worker acts and learns; all step with the mean of their gradients."""

    acting_role: ClassVar[str] = "worker"
    alone_in_thread: ClassVar[bool] = True

    worker_threads: int = 1
    """Compute threads of each worker."""
    check_every: int = 100
    """Updates after which the workers see whether they still hold the same weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("worker_threads", "check_every")

    def batch_columns(self, num_envs: int) -> int:
        """Each learns from its own."""
        return max(num_envs // self.num_actors, 1)


class Allreduce:
    """The formation."""

    Config = AllreduceConfig
