"""How often each sequence is learned from, as arithmetic that nobody waits in.

::

    if limiter.can_put(most_sequences):         # else the actor steps aside
        limiter.record_put(len(table.put(steps)))
    if limiter.can_sample(batch_size):          # else the learner does
        batch = table.sample(batch_size, rng)
        limiter.record_sample(batch_size)

The **surplus** is ``put * samples_per_insert - sampled``. Sampling lowers it and putting raises it;
it is kept within ``error_buffer`` of where it stood when sampling could begin. Puts and samples are
counted in sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from rookery.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class RateLimiterConfig:
    """Settings of a rate limiter; those under which both sides could wait for ever are refused."""

    samples_per_insert: float | None = None
    """How often each sequence is sampled on average; None limits neither side."""
    min_size: int = 1
    """Sequences that must have been put before the first sample."""
    error_buffer: float | None = None
    """By how many samples either side may run ahead; None is the least that cannot deadlock."""
    max_put: int = 1
    """The most sequences that one put adds."""
    max_sample: int = 1
    """The most sequences that one sample takes: the batch size."""

    def __post_init__(self) -> None:
        for name in ("min_size", "max_put", "max_sample"):
            if getattr(self, name) < 1:
                raise UserError(f"rate limiter: {name}={getattr(self, name)} must be at least 1")
        ratio = self.samples_per_insert
        if ratio is None:
            if self.error_buffer is not None:
                raise UserError(
                    "rate limiter: error_buffer does nothing without samples_per_insert; "
                    "set both or neither"
                )
            return
        if not (0.0 < ratio < math.inf):
            raise UserError(
                f"rate limiter: samples_per_insert={ratio} must be a positive number; "
                "leave it out for no limit"
            )
        if self.error_buffer is not None and not self.least_buffer <= self.error_buffer < math.inf:
            raise UserError(
                f"rate limiter: error_buffer={self.error_buffer} would let actors and learner wait "
                f"for each other for ever; with puts of {self.max_put} and samples of "
                f"{self.max_sample} it must be at least {self.least_buffer:g}"
            )

    @property
    def least_buffer(self) -> float:
        """The smallest error buffer with which at every moment one side may go on.

        A put raises the surplus by ``max_put * samples_per_insert``, a sample lowers it by
        ``max_sample``; if both do not fit between the bounds, there is a surplus in the middle at
        which neither may move. A hair more makes up for rounding.
        """
        raised = self.max_put * (self.samples_per_insert or 0.0)
        return (raised + self.max_sample) / 2.0 * (1.0 + 1e-9)


class RateLimiter:
    """Counts puts and samples, and says which of them may go on. Holds nothing and never blocks."""

    def __init__(self, config: RateLimiterConfig) -> None:
        self.config = config
        self.num_put = 0
        self.num_sampled = 0
        ratio = config.samples_per_insert
        self._ratio = 0.0 if ratio is None else ratio
        middle = config.min_size * self._ratio
        buffer = config.least_buffer if config.error_buffer is None else config.error_buffer
        self._low, self._high = middle - buffer, middle + buffer

    @property
    def begun(self) -> bool:
        """Whether enough was put for samples to begin."""
        return self.num_put >= self.config.min_size

    def can_put(self, num: int = 1) -> bool:
        """Whether up to ``num`` sequences may be put now."""
        if num > self.config.max_put:
            raise ValueError(f"a put of {num} is more than max_put={self.config.max_put}")
        if self.config.samples_per_insert is None or not self.begun:
            return True
        return self._surplus + num * self._ratio <= self._high

    def can_sample(self, num: int = 1) -> bool:
        """Whether ``num`` sequences may be sampled now."""
        if num > self.config.max_sample:
            raise ValueError(f"a sample of {num} is more than max_sample={self.config.max_sample}")
        if not self.begun:
            return False
        return self.config.samples_per_insert is None or self._surplus - num >= self._low

    def record_put(self, num: int) -> None:
        """``num`` sequences were put."""
        self.num_put += num

    def record_sample(self, num: int) -> None:
        """``num`` sequences were sampled."""
        self.num_sampled += num

    @property
    def replay_ratio(self) -> float:
        """Samples for each sequence put so far; 0 before the first."""
        return self.num_sampled / self.num_put if self.num_put else 0.0

    def state_dict(self) -> dict[str, Any]:
        """JSON data that :meth:`load_state_dict` continues from."""
        return {"num_put": self.num_put, "num_sampled": self.num_sampled}

    def load_state_dict(self, data: dict[str, Any]) -> None:
        """Continue counting from a saved state."""
        self.num_put, self.num_sampled = int(data["num_put"]), int(data["num_sampled"])

    @property
    def _surplus(self) -> float:
        return self.num_put * self._ratio - self.num_sampled
