"""Numbers that change over a run, as functions of absolute steps.

A schedule never depends on how long the run was asked to be: resuming with a larger ``--steps``
continues the same curve.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rookery.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class LinearSchedule:
    """From ``start`` to ``end`` between the absolute steps ``from_steps`` and ``until_steps``."""

    start: float
    """Value up to from_steps."""
    end: float
    """Value from until_steps on."""
    until_steps: int
    """Absolute step at which the end value is reached."""
    from_steps: int = 0
    """Absolute step at which the change begins."""

    def __post_init__(self) -> None:
        if self.until_steps <= self.from_steps:
            raise UserError(
                f"schedule: until_steps ({self.until_steps}) must be larger than from_steps "
                f"({self.from_steps})"
            )

    def at(self, steps: int) -> float:
        """The value at an absolute step."""
        done = (steps - self.from_steps) / (self.until_steps - self.from_steps)
        return self.start + (self.end - self.start) * min(max(done, 0.0), 1.0)


Schedule = float | LinearSchedule


def value_at(schedule: Schedule, steps: int) -> float:
    """The schedule's value at an absolute step; a plain number is constant."""
    return schedule.at(steps) if isinstance(schedule, LinearSchedule) else float(schedule)


def check_schedule(name: str, schedule: Schedule, *, low: float = 0.0) -> None:
    """Refuse values below ``low``, and what is not finite, anywhere on the schedule."""
    ends = (schedule.start, schedule.end) if isinstance(schedule, LinearSchedule) else (schedule,)
    for end in ends:
        if not end >= low:
            raise UserError(f"{name}: {end} is below {low}")
        if end == math.inf:
            raise UserError(f"{name}: must be finite, got {end}")
