"""A curve in text: eight dots a cell in braille, or one character a cell in ASCII.

::

    500 ┤             ⣀⡠⠤◆
    250 ┤      ⢀⡠⠔⠊⠉
      0 ┤⣀⣀⠤⠒⠁
         0      30k    60k

Ticks stand at round values, the same number of rows apart, and a value at a tick is drawn in the
tick's row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rookery.cli.live.cells import Glyphs, Line, rounded

Point = tuple[float, float]
Run = list[tuple[int, float]]

_LEAST_WIDTH, _LEAST_HEIGHT = 8, 4
_LARGEST = 1e300
"""Larger values overflow when their range is taken."""
_SMALLEST_RANGE = 1e-300
_X_GAP = 4
"""The least room between numbers under the x axis."""
_TICK_ROWS = range(2, 7)
"""Rows from tick to tick, where there is room for that."""
_TICKS = 7
"""About so many, where it can be chosen."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column of the dot."""


def plot(
    points: Sequence[Point],
    marks: Sequence[Point],
    *,
    width: int,
    height: int,
    glyphs: Glyphs,
    goal: float | None = None,
) -> list[Line]:
    """``height`` lines of at most ``width`` cells; none where there is too little room or data.

    ``points`` are joined in the order of their x, ``marks`` stand alone, ``goal`` is a level that
    is drawn where it is in range. The x axis begins at zero, or below it.
    """
    seen = [_tame(point) for point in (*points, *marks)]
    if width < _LEAST_WIDTH or height < _LEAST_HEIGHT or not seen:
        return []
    scale = _scale([y for _, y in seen], height - 1)
    labels = scale.labels()
    margin = max(map(len, labels.values()))
    columns = width - margin - 2
    if columns < 2:
        return []
    left, right = min(0.0, *(x for x, _ in seen)), max(x for x, _ in seen)
    canvas = _Canvas(columns, height - 1, (left, right), scale, glyphs)
    if goal is not None and goal in scale:
        canvas.level(goal)
    canvas.curve([_tame(point) for point in points])
    for mark in marks:
        canvas.mark(_tame(mark))
    axis = "┤" if glyphs.unicode else "|"
    lines: list[Line] = []
    for row, cells in enumerate(canvas.lines()):
        label = labels.get(row, "")
        tick = axis if label else glyphs.vertical
        lines.append([(f"{label:>{margin}} ", "label"), (tick, "border"), *cells])
    return [*lines, [(" " * (margin + 2) + _x_labels(left, right, columns), "label")]]


class _Canvas:
    """A grid of cells, each with its dots or the character that covers them."""

    def __init__(
        self, columns: int, rows: int, x_range: Point, scale: Scale, glyphs: Glyphs
    ) -> None:
        self.columns, self.rows, self.glyphs = columns, rows, glyphs
        self.x_range, self.scale = x_range, scale
        self.across, self.down = (2, 4) if glyphs.unicode else (1, 1)
        self.dots = [[0] * columns for _ in range(rows)]
        self.over: dict[tuple[int, int], tuple[str, str]] = {}

    def _x(self, x: float) -> int:
        low, high = self.x_range
        share = (x - low) / (high - low) if high > low else 0.0
        return round(share * (self.columns * self.across - 1))

    def _y(self, y: float) -> int:
        """In dots from the top; a row's own value is in its middle."""
        return round(self.scale.rows_below_top(y) * self.down) + (self.down - 1) // 2

    def level(self, y: float) -> None:
        """A dotted line across; whatever comes later is drawn over it."""
        row, level = divmod(self._y(y), self.down)
        dots = chr(0x2800 + _DOTS[level][0]) if self.glyphs.unicode else "-"
        for column in range(self.columns):
            self.over[row, column] = (dots, "goal")

    def mark(self, point: Point) -> None:
        """One marked cell."""
        cell = self._y(point[1]) // self.down, self._x(point[0]) // self.across
        self.over[cell] = (self.glyphs.mark, "mark")

    def curve(self, points: Sequence[Point]) -> None:
        """Join the points, one mean value for each column of dots."""
        sums: dict[int, tuple[float, int]] = {}
        for x, y in points:
            total, count = sums.get(self._x(x), (0.0, 0))
            sums[self._x(x)] = (total + y, count + 1)
        means: Run = [(x, self._y(total / count)) for x, (total, count) in sorted(sums.items())]
        if means:
            self._vertical(means[0][0], int(means[0][1]), int(means[0][1]))
        for (x0, y0), (x1, y1) in itertools.pairwise(means):
            before = round(y0)
            for x in range(x0 + 1, x1 + 1):
                here = round(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
                # From half-way, so that a steep curve stays one dot wide.
                start = before + (1 if here > before else -1) if here != before else here
                self._vertical(x, start, here)
                before = here

    def _vertical(self, x: int, start: int, end: int) -> None:
        column, side = divmod(x, self.across)
        for y in range(min(start, end), max(start, end) + 1):
            row, level = divmod(y, self.down)
            self.dots[row][column] |= _DOTS[level][side]
            self.over.pop((row, column), None)

    def lines(self) -> list[Line]:
        """The cells, neighbours of one style joined."""
        out: list[Line] = []
        for row, cells in enumerate(self.dots):
            line: Line = []
            for column, bits in enumerate(cells):
                text, style = self.over.get((row, column), (self._cell(bits), "curve"))
                if line and line[-1][1] == style:
                    line[-1] = (line[-1][0] + text, style)
                else:
                    line.append((text, style))
            out.append(line)
        return out

    def _cell(self, bits: int) -> str:
        if not bits:
            return " "
        return chr(0x2800 + bits) if self.glyphs.unicode else "*"


def _tame(point: Point) -> Point:
    x, y = point
    return x, min(max(y, -_LARGEST), _LARGEST)


@dataclass(frozen=True, slots=True)
class Scale:
    """What each row of the y axis stands for: ``unit`` more than the row below it."""

    rows: int
    top: int
    """The value of the highest row, in units."""
    step: float
    """From tick to tick."""
    tick_rows: int
    """Rows from tick to tick."""

    @property
    def unit(self) -> float:
        """From row to row."""
        return self.step / self.tick_rows

    def rows_below_top(self, value: float) -> float:
        """Where ``value`` stands."""
        return self.top - value / self.unit

    def __contains__(self, value: float) -> bool:
        return 0 <= self.rows_below_top(value) <= self.rows - 1

    def ticks(self) -> dict[int, float]:
        """Values by row."""
        places = ((row, self.top - row) for row in range(self.rows))
        return {
            row: place // self.tick_rows * self.step
            for row, place in places
            if place % self.tick_rows == 0
        }

    def labels(self) -> dict[int, str]:
        """Numbers by row, with as many digits as tell them apart."""
        ticks = self.ticks()
        largest = max(abs(value) for value in ticks.values())
        digits = math.floor(math.log10(largest)) - math.floor(math.log10(self.step)) + 1
        return {row: rounded(x) if digits <= 3 else f"{x:.{digits}g}" for row, x in ticks.items()}


def _scale(values: list[float], rows: int) -> Scale:
    """The scale that gives ``values`` the most of ``rows``, with two ticks or more."""
    low, high = min(values), max(values)
    if high - low <= max(1e-9 * max(abs(low), abs(high)), _SMALLEST_RANGE):
        pad = max(abs(high) * 0.1, 0.5)
        low, high = low - pad, high + pad
    every = _TICK_ROWS if rows > 2 * _TICK_ROWS[0] else (1, 2)
    fitting = (
        _anchored(low, high, rows, step, tick_rows)
        for step in _nice((high - low) / rows)
        for tick_rows in every
    )
    return min(
        (scale for scale in fitting if scale is not None and len(scale.ticks()) > 1),
        key=lambda scale: (scale.unit, abs(scale.tick_rows - rows / _TICKS), -scale.step),
    )


def _nice(least: float) -> Iterator[float]:
    """1, 2 or 5 times a power of ten, from about ``least`` upwards; enough of them."""
    power = math.floor(math.log10(least))
    for exponent in range(power, power + 3):
        for digit in (1, 2, 5):
            yield digit * 10.0**exponent


def _anchored(low: float, high: float, rows: int, step: float, tick_rows: int) -> Scale | None:
    """``low`` to ``high`` within ``rows``; None if they do not fit. Rows left over are put on both
    sides, but none beyond zero if there is no value there."""
    unit = step / tick_rows
    # 0.3 / 0.1 is more than 3.
    bottom, top = math.floor(low / unit + 1e-6), math.ceil(high / unit - 1e-6)
    spare = rows - 1 - (top - bottom)
    if spare < 0:
        return None
    below = spare // 2
    if bottom >= 0:
        below = min(below, bottom)
    elif top <= 0:
        below = max(below, spare + top)
    return Scale(rows, top + spare - below, step, tick_rows)


def _x_labels(left: float, right: float, columns: int) -> str:
    """Round numbers under the x axis, each below its place; as many as there is room for."""
    if left == right:
        return rounded(left)[:columns]
    for step in _nice((right - left) / columns):
        first, last = math.ceil(left / step - 1e-6), math.floor(right / step + 1e-6)
        ticks = [number * step for number in range(first, last + 1)]
        text = _below(ticks, left, right, columns)
        if text is not None:
            return text
    return rounded(left)[:columns]


def _below(ticks: list[float], left: float, right: float, columns: int) -> str | None:
    """``ticks`` as text, each at its place; None if they are too close."""
    text = ""
    for tick in ticks:
        label = rounded(tick)
        centre = round((tick - left) / (right - left) * (columns - 1))
        start = max(min(centre - len(label) // 2, columns - len(label)), 0)
        if start < len(text) + (_X_GAP if text else 0):
            return None
        text = text.ljust(start) + label
    return text or None
