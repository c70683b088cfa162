"""A curve in text: eight dots a cell in braille, or one character a cell in ASCII.

::

    500 ┤             ⣀⡠⠤◆
    250 ┤      ⢀⡠⠔⠊⠉
      0 ┤⣀⣀⠤⠒⠁
         0             61k
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from rookery.cli.live.cells import Glyphs, Line, rounded

Point = tuple[float, float]
Run = list[tuple[int, float]]

_LEAST_WIDTH, _LEAST_HEIGHT = 8, 3
_LARGEST = 1e300
"""Larger values overflow when their range is taken."""
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
    low, high, step = _nice_range([y for _, y in seen], height - 1)
    labels = _labels(low, high, step, height - 1)
    margin = max(map(len, labels.values()))
    columns = width - margin - 2
    if columns < 2:
        return []
    left, right = min(0.0, *(x for x, _ in seen)), max(x for x, _ in seen)
    canvas = _Canvas(columns, height - 1, (left, right), (low, high), glyphs)
    if goal is not None and low <= goal <= high:
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
        self, columns: int, rows: int, x_range: Point, y_range: Point, glyphs: Glyphs
    ) -> None:
        self.columns, self.rows, self.glyphs = columns, rows, glyphs
        self.x_range, self.y_range = x_range, y_range
        self.across, self.down = (2, 4) if glyphs.unicode else (1, 1)
        self.dots = [[0] * columns for _ in range(rows)]
        self.over: dict[tuple[int, int], tuple[str, str]] = {}

    def _x(self, x: float) -> int:
        low, high = self.x_range
        share = (x - low) / (high - low) if high > low else 0.0
        return round(share * (self.columns * self.across - 1))

    def _y(self, y: float) -> int:
        low, high = self.y_range
        return round((high - y) / (high - low) * (self.rows * self.down - 1))

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


def _nice_range(values: list[float], rows: int) -> tuple[float, float, float]:
    """Low, high and step of the y axis: multiples of 1, 2 or 5 times a power of ten."""
    low, high = min(values), max(values)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        pad = max(abs(high) * 0.1, 0.5)
        low, high = low - pad, high + pad
    rough = (high - low) / max(min(rows // 2, 6), 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(nice * power for nice in (1, 2, 5, 10) if nice * power >= rough * 0.999)
    return math.floor(low / step) * step, math.ceil(high / step) * step, step


def _labels(low: float, high: float, step: float, rows: int) -> dict[int, str]:
    """Numbers of the y axis by row; the ends come first where they would meet others."""
    count = round((high - low) / step)
    labels: dict[int, str] = {}
    for tick in (0, count, *range(1, count)):
        value = low + tick * step
        row = round((high - value) / (high - low) * (rows - 1))
        # 0.30000000000000004 is 0.3
        value = 0.0 if abs(value) < step * 1e-6 else value
        if row not in labels:
            labels[row] = rounded(value)
    return labels


def _x_labels(left: float, right: float, columns: int) -> str:
    """Numbers under the x axis: its ends, and the middle if there is room."""
    first, last = rounded(left), rounded(right)
    if left == right or len(first) + len(last) + 1 > columns:
        return first[:columns]
    text = first + last.rjust(columns - len(first))
    middle = rounded((left + right) / 2)
    start = (columns - len(middle)) // 2
    if columns >= 30 and not text[start - 2 : start + len(middle) + 2].strip():
        text = text[:start] + middle + text[start + len(middle) :]
    return text
