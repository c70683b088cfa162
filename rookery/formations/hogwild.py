"""Formation ``hogwild``: workers around one set of weights in shared memory; none waits for another.

A3C and, with a device each, A3G (https://arxiv.org/abs/1106.5730, https://arxiv.org/abs/1602.01783).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rookery.formations.settings import FormationConfig


@dataclass(frozen=True, kw_only=True)
class HogwildConfig(FormationConfig):
    """Workers around one set of weights in shared memory; none waits for another."""

    acting_role: ClassVar[str] = "worker"
    alone_in_thread: ClassVar[bool] = True
    averages: ClassVar[bool] = False

    worker_threads: int = 1
    """Compute threads of each worker."""
    shared_statistics: bool = True
    """One set of optimizer statistics for all workers; false: each has its own."""
    devices: tuple[str, ...] = ()
    """Worker i computes on device i modulo their number, such as [cuda:0, cuda:1] (A3G); the shared
    weights stay in main memory. Empty: all on --device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("worker_threads")

    def batch_columns(self, num_envs: int) -> int:
        """Each learns from its own."""
        return max(num_envs // self.num_actors, 1)


class Hogwild:
    """The formation."""

    Config = HogwildConfig
