"""Numbers that change over a run, as functions of absolute steps.

A schedule does not depend on how long the run was asked to be: resuming with a larger ``--steps``
continues the same curve, unless ``stretch_schedules`` has it span the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

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
    via: tuple[tuple[int, float], ...] = ()
    """Corners on the way, each [absolute step, value]; straight lines between them."""
    floor: float | None = None
    """Never below this; null: as low as the lines go."""

    def __post_init__(self) -> None:
        if self.until_steps <= self.from_steps:
            raise UserError(
                f"schedule: until_steps ({self.until_steps}) must be larger than from_steps "
                f"({self.from_steps})"
            )
        steps = [corner for corner, _ in self.corners]
        if any(later <= earlier for earlier, later in pairwise(steps)):
            raise UserError(
                f"schedule: the steps of via must rise between from_steps ({self.from_steps}) "
                f"and until_steps ({self.until_steps})"
            )

    @property
    def corners(self) -> tuple[tuple[int, float], ...]:
        """(absolute step, value) of the start, of each corner and of the end."""
        return ((self.from_steps, self.start), *self.via, (self.until_steps, self.end))

    def at(self, steps: int) -> float:
        """The value at an absolute step."""
        value = self._on_lines(steps)
        return value if self.floor is None else max(value, self.floor)

    def _on_lines(self, steps: int) -> float:
        for (begun, before), (reached, after) in pairwise(self.corners):
            if steps < reached:
                done = max((steps - begun) / (reached - begun), 0.0)
                return before + (after - before) * done
        return self.end

    def stretched(self, factor: float) -> LinearSchedule:
        """The same curve over ``factor`` times the steps."""
        return replace(
            self,
            from_steps=round(self.from_steps * factor),
            via=tuple((round(steps * factor), value) for steps, value in self.via),
            until_steps=round(self.until_steps * factor),
        )


Schedule = float | LinearSchedule


def value_at(schedule: Schedule, steps: int) -> float:
    """The schedule's value at an absolute step; a plain number is constant."""
    return schedule.at(steps) if isinstance(schedule, LinearSchedule) else float(schedule)


def check_schedule(name: str, schedule: Schedule, *, low: float = 0.0) -> None:
    """Refuse values below ``low``, and what is not finite, anywhere on the schedule."""
    corners = schedule.corners if isinstance(schedule, LinearSchedule) else ((0, schedule),)
    for _, value in corners:
        if not value >= low:
            raise UserError(f"{name}: {value} is below {low}")
        if value == math.inf:
            raise UserError(f"{name}: must be finite, got {value}")
