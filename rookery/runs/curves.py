"""The numbers of a learning curve: read from records, smoothed, and joined over seeds.

::

    one = [series(records, "steps", "rollout/return_mean") for records in runs]
    window = auto_window(one)
    spread = across([smoothed(line, window) for line in one])
    draw(spread.x, spread.centre, spread.low, spread.high)

NumPy alone; :mod:`rookery.runs.plotting` draws what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from rookery.core.interval import half_width

Array = npt.NDArray[np.float64]
Record = dict[str, Any]
XAxis = Literal["steps", "wall"]
BandKind = Literal["range", "std", "iqr"]

X_AXES: tuple[XAxis, ...] = get_args(XAxis)
BAND_KINDS: tuple[BandKind, ...] = get_args(BandKind)

MAX_POINTS = 1000
"""A curve over seeds has no more points than this; a picture is not wider."""

_LATER = ("eval/", "record/")
"""Metrics of saved policies: they lie where the checkpoint was saved, not where they were told."""
_COUNTERS = (
    *("steps", "updates", "wall_secs", "eval/episodes"),
    *(f"{about}{place}" for about in _LATER for place in ("steps", "saved_wall_secs")),
)
_AUTO_SHARE = 25
_SHORTEST_TAIL = 0.03
"""Where a run goes on alone for less than this share of the curve, that is left out."""


@dataclass(frozen=True, slots=True)
class Series:
    """One run's values ``y`` at rising ``x``."""

    x: Array
    y: Array

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Scores of whole episodes: their mean at ``x``, and half the width of its 95 % interval."""

    x: Array
    mean: Array
    half: Array
    """NaN where the deviation of the episodes is not known."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Several runs as one curve."""

    x: Array
    centre: Array
    low: Array
    high: Array
    """``low`` and ``high`` are NaN where fewer than two runs have values."""
    count: npt.NDArray[np.int64]
    """How many runs have values at each ``x``."""


def metric_keys(records: Iterable[Record]) -> list[str]:
    """Names of everything in ``records`` that can be drawn."""
    found = {
        key for record in records for key, value in record.items() if _number(value) is not None
    }
    return sorted(found.difference(_COUNTERS))


def series(records: Iterable[Record], x: XAxis, y: str) -> Series:
    """Values of ``y`` over steps, or over seconds of training; records without it are left out.

    If ``x`` goes back, as when a run was taken back to a checkpoint, the later records count.
    """
    points: list[tuple[float, float]] = []
    for record in records:
        at, value = _place(record, x, y), _number(record.get(y))
        if at is None or value is None:
            continue
        while points and points[-1][0] >= at:
            points.pop()
        points.append((at, value))
    columns = np.array(points, np.float64).reshape(-1, 2)
    return Series(columns[:, 0], columns[:, 1])


def evaluations(records: Sequence[Record], x: XAxis, y: str) -> Evaluations:
    """The evaluations in ``records``; ``y`` is such as ``eval/return_mean``."""
    means = series(records, x, y)
    deviation_key = y.removesuffix("_mean") + "_std"
    halves = {}
    for record in records:
        at, std = _place(record, x, y), _number(record.get(deviation_key))
        num = _number(record.get("eval/episodes"))
        half_of = half_width(std, int(num)) if std is not None and num else None
        if at is not None and half_of is not None:
            halves[at] = half_of
    half = np.array([halves.get(at, math.nan) for at in means.x.tolist()], np.float64)
    return Evaluations(means.x, means.y, half)


def auto_window(lines: Iterable[Series]) -> int:
    """How many records to smooth over: a 25th of the longest run, an odd number; 1 for few."""
    longest = max(map(len, lines), default=0)
    return longest // _AUTO_SHARE // 2 * 2 + 1


def smoothed(line: Series, window: int) -> Series:
    """Each value replaced by the mean of the ``window`` around it.

    Towards both ends the window shrinks evenly, so that it never leans to one side.
    """
    num = len(line)
    index = np.arange(num)
    half = np.minimum((window - 1) // 2, np.minimum(index, num - 1 - index))
    sums = np.concatenate([[0.0], np.cumsum(line.y)])
    means = (sums[index + half + 1] - sums[index - half]) / (2 * half + 1)
    return Series(line.x, np.where(half == 0, line.y, means))


def across(lines: Sequence[Series], band: BandKind = "range") -> Spread:
    """Runs as one curve, at every point that any of them has, straight lines between.

    No run is continued beyond its own records: where one has ended, the others remain. The curve
    begins where all have begun.
    """
    x = _grid(lines)
    values = np.stack([np.interp(x, line.x, line.y, left=np.nan, right=np.nan) for line in lines])
    count = np.sum(~np.isnan(values), axis=0)
    columns = [column[~np.isnan(column)] for column in values.T]
    rows = [_centre_and_band(column, band) for column in columns]
    centre, low, high = np.array(rows, np.float64).reshape(-1, 3).T
    return Spread(x, centre, low, high, count)


def together(spread: Spread) -> Spread:
    """``spread`` over the part that all runs have, or as many as ever at a time."""
    part = _together(spread)
    return Spread(
        spread.x[part], spread.centre[part], spread.low[part], spread.high[part], spread.count[part]
    )


def tails(lines: Sequence[Series], spread: Spread) -> list[Series]:
    """Each of ``lines`` from where the first of them has ended, if it goes on for long enough to be
    seen. A mean of ever fewer runs would jump where one ends, and say something else than before.
    """
    begin = float(spread.x[_together(spread).stop - 1])
    shortest = _SHORTEST_TAIL * (spread.x[-1] - spread.x[0])
    found = []
    for line in lines:
        if line.x[0] <= begin < line.x[-1] - shortest:
            later = line.x > begin
            x = np.concatenate([[begin], line.x[later]])
            y = np.concatenate([[np.interp(begin, line.x, line.y)], line.y[later]])
            found.append(Series(x, y))
    return found


def _together(spread: Spread) -> slice:
    most = np.flatnonzero(spread.count == spread.count.max())
    later = np.flatnonzero(np.diff(most) > 1)
    stop = most[later[0]] if len(later) else most[-1]
    return slice(int(most[0]), int(stop) + 1)


def _grid(lines: Sequence[Series]) -> Array:
    """Where the curve is computed: all points of all runs from where the last one begins."""
    x: Array = np.unique(np.concatenate([line.x for line in lines]))
    begin = max(line.x[0] for line in lines)
    covered = np.zeros(len(x), bool)
    for line in lines:  # a gap that no run covers has no values
        covered |= (x >= line.x[0]) & (x <= line.x[-1])
    x = x[(x >= begin) & covered]
    if len(x) > MAX_POINTS:
        x = x[np.unique(np.linspace(0, len(x) - 1, MAX_POINTS).astype(int))]
    return x


def _centre_and_band(values: Array, band: BandKind) -> tuple[float, float, float]:
    if len(values) < 2:
        return float(values[0]), math.nan, math.nan
    if band == "iqr":
        low, high = np.quantile(values, (0.25, 0.75))
        return _interquartile_mean(values), float(low), float(high)
    mean = float(values.mean())
    if band == "std":
        std = float(values.std(ddof=1))
        return mean, mean - std, mean + std
    return mean, float(values.min()), float(values.max())


def _interquartile_mean(values: Array) -> float:
    """Mean without the lowest and highest quarter (rounded down) of the values."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def _place(record: Record, x: XAxis, y: str) -> float | None:
    """Where a record lies; an evaluation lies where the checkpoint was saved that was played."""
    about = next((about for about in _LATER if y.startswith(about)), "")
    if x == "steps":
        return _number(record.get(f"{about}steps"))
    return _number(record.get(f"{about}saved_wall_secs", record.get("wall_secs")))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
