"""How large a table is and how it chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rookery.core.errors import UserError
from rookery.replay.sequences import SequenceConfig


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """Settings of a table."""

    capacity_steps: int = 100_000
    """Steps that are kept, of all streams together."""
    num_streams: int = 1
    """Environments of all actors together."""
    batch_size: int = 32
    """The most sequences that are sampled at once."""
    sequence: SequenceConfig = SequenceConfig()
    """The shape of a sequence."""
    priority_exponent: float = 0.0
    """Odds are priorities to this power: 0 is uniform, R2D2 takes 0.9."""
    min_priority: float = 1e-6
    """Priorities below this count as this, so that everything can be sampled again."""
    chunk_steps: int = 16
    """Steps that are compressed and dropped together."""
    capacity_sequences: int | None = None
    """Sequences that are kept; None is as many as long episodes have in capacity_steps."""

    def __post_init__(self) -> None:
        for name in ("capacity_steps", "num_streams", "batch_size", "chunk_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"replay: {name}={getattr(self, name)} must be at least 1")
        if not 0.0 <= self.priority_exponent < math.inf:
            raise UserError(
                f"replay: priority_exponent={self.priority_exponent} must be a number from 0 "
                "(uniform) on"
            )
        if not 0.0 < self.min_priority < math.inf:
            raise UserError(f"replay: min_priority={self.min_priority} must be a positive number")
        if self.capacity_steps // self.sequence.period < self.batch_size:
            raise UserError(
                f"replay: capacity_steps={self.capacity_steps} holds "
                f"{self.capacity_steps // self.sequence.period} sequences, less than one batch of "
                f"{self.batch_size}; raise it to {self.batch_size * self.sequence.period} or more"
            )
        # A sequence that begins in the last row of a chunk reaches into so many more chunks; twice
        # that, since streams do not advance in step: each end of an episode takes a row.
        more_chunks = -(-self.sequence.num_steps // self.chunk_steps)
        needed = 2 * self.num_streams * more_chunks * self.chunk_steps
        if self.capacity_steps < needed:
            raise UserError(
                f"replay: capacity_steps={self.capacity_steps} has no room for two sequences "
                f"of each of {self.num_streams} streams; raise it to {needed} or more"
            )
        least = self.batch_size + self._pending
        if self.capacity_sequences is not None and self.capacity_sequences < least:
            raise UserError(
                f"replay: capacity_sequences={self.capacity_sequences} is less than one batch of "
                f"{self.batch_size} and {self._pending} that may be under way; "
                f"raise it to {least} or more"
            )

    @property
    def num_chunks(self) -> int:
        """Chunks of rows: capacity, and for each stream one that is being filled."""
        return -(-self.capacity_steps // self.chunk_steps) + self.num_streams

    @property
    def num_places(self) -> int:
        """Places for sequences, complete and under way."""
        if self.capacity_sequences is not None:
            return self.capacity_sequences
        rows = self.num_chunks * self.chunk_steps
        return max(-(-rows // self.sequence.period), self.batch_size) + self._pending

    @property
    def _pending(self) -> int:
        return self.num_streams * self.sequence.max_pending
