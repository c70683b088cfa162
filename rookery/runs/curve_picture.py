"""From runs on disk to the picture of their learning curves.

::

    composed = compose([Path("runs/first")], Wanted(x="wall"))
    save(composed.picture, Path("first.png"))
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rookery.core.errors import UserError, near_names
from rookery.runs.comparison import (
    RunRecords,
    find_runs,
    grouped,
    read_run,
    seed_labels,
    short_labels,
)
from rookery.runs.curves import (
    BandKind,
    Evaluations,
    Series,
    XAxis,
    across,
    auto_window,
    evaluations,
    metric_keys,
    series,
    smoothed,
    tails,
    together,
)
from rookery.runs.metric_names import human_name
from rookery.runs.plotting import Curve, Picture

SHORT_KEYS = {
    "return": "rollout/return_mean",
    "length": "rollout/length_mean",
    "loss": "train/loss",
    "q": "train/value_mean",
}
OVERVIEW = "overview"
_LOSSES = ("train/loss", "train/value_mean", "train/policy_loss", "train/value_loss")
_AGES = tuple(
    f"train/{what}_{of}" for what in ("staleness", "lag") for of in ("min", "mean", "max")
)
_SCORES = ("rollout/return_mean", "rollout/length_mean", "rollout/return_max")
"""Beside these, evaluations are drawn."""

BAND_NAMES: dict[BandKind, tuple[str, str]] = {
    "range": ("mean", "band: lowest to highest seed"),
    "std": ("mean", "band: mean ± standard deviation over seeds"),
    "iqr": ("interquartile mean", "band: middle half of the seeds"),
}
"""For each kind of band: what the line is, and what the band is."""

_COUNT_SCALES = ((1e6, "steps (millions)"), (1e3, "steps (thousands)"), (1.0, "steps"))
_TIME_SCALES = (
    (3600.0, "hours of training"),
    (60.0, "minutes of training"),
    (1.0, "seconds of training"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a picture is to show."""

    x: XAxis = "steps"
    y: str | None = None
    """A metric, several with commas between, for a panel each, or an overview of the usual ones;
    None: training return, or length where runs are judged by it."""
    smooth: int | None = None
    """Records to smooth over; None chooses."""
    band: BandKind = "range"
    """What is shown of the spread over seeds."""
    group: bool = True
    """Draw runs that differ only in their seed as one curve."""
    title: str | None = None
    """None: the environment."""
    labels: Sequence[str] | None = None
    """Names of the curves; None: what differs between them."""


@dataclass(frozen=True, slots=True)
class Composed:
    """A picture, and what to say about it."""

    picture: Picture
    keys: list[str]
    """The metric of each panel."""
    num_runs: int
    window: int
    left_out: list[Path]
    """Runs without a value to draw."""
    stem: str
    """What its file is called, without the ending."""


def compose(paths: Sequence[Path], wanted: Wanted | None = None) -> Composed:
    """The picture of the runs that ``paths`` mean: run directories, or directories of runs."""
    wanted = wanted or Wanted()
    runs = [read_run(path) for path in find_runs(paths)]
    keys = _keys(runs, wanted.y, wanted.x)
    lines = {key: {id(run): series(run.records, wanted.x, key) for run in runs} for key in keys}
    drawn = [run for run in runs if any(len(lines[key][id(run)]) for key in keys)]
    groups = grouped(drawn) if wanted.group else [[run] for run in drawn]
    window = wanted.smooth or auto_window(line for of in lines.values() for line in of.values())
    labels = _labels(groups, wanted)
    curves = {
        key: [
            _curve(label, group, [lines[key][id(run)] for run in group], window, wanted, key)
            for label, group in zip(labels, groups, strict=True)
        ]
        for key in keys
    }
    every = [curve for panel in curves.values() for curve in panel]
    axis, marks = _x_scale(every, wanted.x), _evaluation_name(every)
    first, *beside = (
        _picture(curves[key], drawn, wanted, key, window, axis, marks) for key in keys
    )
    left_out = [run.path for run in runs if run not in drawn]
    stem = _overview_stem(wanted.x) if wanted.y == OVERVIEW else "-".join(map(_file_stem, keys))
    picture = replace(first, beside=beside)
    return Composed(picture, keys, len(drawn), window, left_out, stem)


def _overview_stem(x: XAxis) -> str:
    return OVERVIEW if x == "steps" else f"{OVERVIEW}-{x}"


def _file_stem(key: str) -> str:
    """The name of the file for a metric: ``return``, ``train-entropy``."""
    short = {SHORT_KEYS[name]: name for name in ("return", "length")}
    return short.get(key, key.replace("/", "-"))


def overview_keys(known: Sequence[str], x: XAxis) -> list[str]:
    """What an overview shows of those that are ``known``: over steps what is learned, four panels
    as losses differ between algorithms; over time also how fast, by how many and how stale."""
    if x == "steps":
        return ["rollout/return_mean", "rollout/length_mean", *_LOSSES]
    acting = (re.fullmatch(r"fleet/(.+)_env_share", key) for key in known)
    active = [f"fleet/{found[1]}s" for found in acting if found]
    scores = ("rollout/return_mean", "rollout/return_max")
    return [*scores, *_LOSSES, "time/env_steps_per_s", *active, "train/staleness", *_AGES]


def _keys(runs: Sequence[RunRecords], asked: str | None, x: XAxis) -> list[str]:
    """The metrics that are meant, each once."""
    if asked == OVERVIEW:
        known = metric_keys(record for run in runs for record in run.records)
        found = [key for key in overview_keys(known, x) if key in known]
        return found or [_key(runs, None)]
    words = [None] if asked is None else [word.strip() for word in asked.split(",")]
    return list(dict.fromkeys(_key(runs, word) for word in words))


def _key(runs: Sequence[RunRecords], asked: str | None) -> str:
    """The metric that is meant; its last part is enough where that says it all."""
    known = metric_keys(record for run in runs for record in run.records)
    if not known:
        which = str(runs[0].path) if len(runs) == 1 else f"{runs[0].path} and {len(runs) - 1} more"
        raise UserError(f"{which}: no metrics yet; train it a little longer, then plot it again")
    if asked is None:
        judged_by = {run.settings.get("eval.score", "return") for run in runs}
        return _first_known(SHORT_KEYS["length" if judged_by == {"length"} else "return"], known)
    key = SHORT_KEYS.get(asked, asked)
    endings = [name for name in known if name.endswith(f"/{asked}")]
    ending = [name for name in endings if not name.startswith("window/")] or endings
    if key not in known and len(ending) == 1:
        return ending[0]
    if key not in known:
        near = near_names(asked, [*known, *SHORT_KEYS, OVERVIEW])
        raise UserError(f"--y: unknown '{asked}'{near} (there are: {', '.join(known)})")
    return key


def _first_known(default: str, known: Sequence[str]) -> str:
    if default not in known:
        raise UserError(
            f"no training episode has ended yet; wait, or choose --y from {', '.join(known)}"
        )
    return default


def _labels(groups: Sequence[Sequence[RunRecords]], wanted: Wanted) -> Sequence[str]:
    if wanted.labels is not None:
        if len(wanted.labels) != len(groups):
            raise UserError(
                f"--labels: {len(wanted.labels)} given for {len(groups)} curves; "
                "give one for each, with commas between"
            )
        names = list(wanted.labels)
    elif wanted.group:
        names = short_labels(groups)
    else:
        return seed_labels([run for group in groups for run in group])
    many = any(len(group) > 1 for group in groups)
    if wanted.group and many:
        return [name + _how_many(group, wanted) for name, group in zip(names, groups, strict=True)]
    return names


def _how_many(group: Sequence[RunRecords], wanted: Wanted) -> str:
    if len(group) == 1:
        return " (1 seed)"
    what = "seeds" if len({run.seed for run in group}) == len(group) else "runs"
    return f" ({BAND_NAMES[wanted.band][0]} of {len(group)} {what})"


def _curve(
    label: str,
    group: Sequence[RunRecords],
    raw: Sequence[Series],
    window: int,
    wanted: Wanted,
    key: str,
) -> Curve:
    raw = [line for line in raw if len(line)]
    if not raw:  # of this metric, it has nothing
        return Curve(label)
    lines = [smoothed(line, window) for line in raw]
    spread = across(lines, wanted.band)
    thin = raw if len(raw) > 1 or window > 1 else ()
    return Curve(label, thin, together(spread), tails(lines, spread), _marks(group, wanted.x, key))


def _marks(group: Sequence[RunRecords], x: XAxis, key: str) -> list[Evaluations]:
    """Evaluations that belong beside the curve, or of which it is made."""
    beside = key.replace("rollout/", "eval/") if key in _SCORES else key
    if not beside.startswith("eval/"):
        return []
    found = [evaluations(run.records, x, beside) for run in group]
    return [played for played in found if len(played.x)]


def _picture(
    curves: Sequence[Curve],
    runs: Sequence[RunRecords],
    wanted: Wanted,
    key: str,
    window: int,
    axis: tuple[float, str],
    evaluation_name: str,
) -> Picture:
    scale, x_name = axis
    single = len(runs) == len(curves)
    worlds = {str(run.settings.get("env.id", "")) for run in runs}
    default_title = worlds.pop() if len(worlds) == 1 else ""
    before = f"before smoothing over {window} records" if window > 1 else ""
    return Picture(
        curves=curves,
        x_name=x_name,
        y_name=_y_name(key, runs),
        x_scale=scale,
        title=default_title if wanted.title is None else wanted.title,
        raw_name="thin: " + ", ".join(filter(None, ("" if single else "single seeds", before))),
        band_name=BAND_NAMES[wanted.band][1],
        evaluation_name=evaluation_name,
        marked=key.startswith("eval/"),
    )


def _evaluation_name(curves: Sequence[Curve]) -> str:
    halves = [played.half for curve in curves for played in curve.evaluations]
    known = any((half == half).any() for half in halves)
    return "evaluation, 95 % interval of its mean" if known else "evaluation"


def _x_scale(curves: Sequence[Curve], x: XAxis) -> tuple[float, str]:
    """Units in which the longest curve is a handy number."""
    end = max(float(curve.spread.x[-1]) for curve in curves if curve.spread is not None)
    scales = _COUNT_SCALES if x == "steps" else _TIME_SCALES
    handy = 2.0 if x == "wall" else 1.0
    return next((pair for pair in scales if end >= handy * pair[0]), scales[-1])


def _y_name(key: str, runs: Sequence[RunRecords]) -> str:
    windows = {run.settings.get("metrics.window", 100) for run in runs}
    window = str(windows.pop()) if len(windows) == 1 else "recent"
    return human_name(key, window)
