"""Learning curves as pictures. Nothing here knows of runs: what is drawn are numbers and labels.

::

    save(Picture(curves=[Curve("cartpole (3 seeds)", lines, spread)], x_name=...), Path("a.png"))

Matplotlib is imported here and nowhere else, when a picture is drawn; it needs no screen.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.core.errors import UserError
from rookery.runs.atomic import write_atomic
from rookery.runs.curves import Evaluations, Series, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
"""Okabe and Ito's palette, told apart with every kind of colour blindness; the darkest first."""
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
"""When colours repeat, lines differ."""
_MARKS = "ovs^D"

_INCHES = (7.2, 4.2)
_DPI = 160
_GREY = "#4D4D4D"
_DOTS = (0, (1, 1.6))
_ROW_INCHES = 0.23
_MOST_ROWS = 5
"""More curves than this are listed in two columns."""
_SHORTEST_STRETCH = 0.03
"""Where some runs go on for less than this share of the curve, that is left out."""

_STYLE: dict[Any, Any] = {
    "font.size": 11.0,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": "#222222",
    "axes.edgecolor": "#8A8A8A",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "xtick.color": "#8A8A8A",
    "ytick.color": "#8A8A8A",
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "legend.fontsize": 10.0,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "rookery",
}


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of the picture: a run, or several that differ in their seed."""

    label: str
    raw: Sequence[Series] = ()
    """Each run as it was recorded: thin and pale."""
    spread: Spread | None = None
    """The line itself and its band."""
    evaluations: Sequence[Evaluations] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything that is drawn."""

    curves: Sequence[Curve]
    x_name: str
    y_name: str
    x_scale: float = 1.0
    """What ``x`` is divided by, such as a million."""
    title: str = ""
    raw_name: str = ""
    """What the thin lines are."""
    band_name: str = ""
    """What the bands are."""
    evaluation_name: str = ""
    """What the marks are."""
    marked: bool = False
    """Whether the lines' own points are marked: there are few."""

    def _repr_png_(self) -> bytes:
        """How a notebook shows it."""
        return rendered(self, "png")


def save(picture: Picture, path: Path) -> None:
    """Draw ``picture`` into the file ``path``; one of SUFFIXES says what kind it is."""
    data = rendered(picture, path.suffix.lower().removeprefix("."))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data, durable=False)
    except OSError as error:
        why = error.strerror or error
        raise UserError(f"cannot write {path}: {why}; choose another --out") from error


def rendered(picture: Picture, kind: str) -> bytes:
    """``picture`` as the content of a png, svg or pdf file; the same for the same numbers."""
    _prepare_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own style is
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
        _draw(picture, figure)
        file = io.BytesIO()
        figure.savefig(file, format=kind, metadata=undated.get(kind))
        return file.getvalue()


def _draw(picture: Picture, figure: Figure) -> None:
    axes = figure.add_subplot()
    for index, curve in enumerate(picture.curves):
        colour, dash = _look(index)
        _draw_raw(axes, picture, curve, colour)
        _draw_spread(axes, picture, curve, colour, dash)
        _draw_evaluations(axes, picture, curve, colour, _MARKS[index % len(_MARKS)])
    axes.set_xlabel(picture.x_name)
    axes.set_ylabel(picture.y_name)
    if picture.title:
        axes.set_title(picture.title)
    axes.grid(visible=True)
    axes.margins(x=0.02)
    _legend(figure, picture)


def _draw_raw(axes: Axes, picture: Picture, curve: Curve, colour: str) -> None:
    for line in curve.raw:
        x = line.x / picture.x_scale
        axes.plot(x, line.y, color=colour, alpha=0.35, linewidth=0.8, zorder=2)


def _draw_spread(axes: Axes, picture: Picture, curve: Curve, colour: str, dash: Any) -> None:
    """The line: dotted where some of the runs have ended, and with a gap where one ends."""
    spread = curve.spread
    if spread is None:
        return
    x = spread.x / picture.x_scale
    axes.fill_between(x, spread.low, spread.high, color=colour, alpha=0.16, linewidth=0, zorder=1)
    mark = "o" if picture.marked or len(x) == 1 else None
    for part in stretches(spread):
        whole = spread.count[part.start] == spread.count.max()
        axes.plot(
            x[part],
            spread.centre[part],
            color=colour,
            linestyle=dash if whole else _DOTS,
            linewidth=2.0 if whole else 1.6,
            marker=mark,
            markersize=4,
            zorder=3,
        )


def stretches(spread: Spread) -> list[slice]:
    """Parts of a curve over which the same number of runs have values; very short ones left out."""
    edges = (np.flatnonzero(np.diff(spread.count)) + 1).tolist()
    parts = [slice(a, b) for a, b in zip([0, *edges], [*edges, len(spread.x)], strict=True)]
    shortest = _SHORTEST_STRETCH * (spread.x[-1] - spread.x[0])
    most = spread.count.max()
    return [
        part
        for part in parts
        if spread.count[part.start] == most
        or spread.x[part.stop - 1] - spread.x[part.start] > shortest
    ]


def _look(index: int) -> tuple[str, Any]:
    """Colour and dashes of a curve."""
    return COLOURS[index % len(COLOURS)], _DASHES[index // len(COLOURS) % len(_DASHES)]


def _draw_evaluations(axes: Axes, picture: Picture, curve: Curve, colour: str, mark: str) -> None:
    for played in curve.evaluations:
        axes.errorbar(
            played.x / picture.x_scale,
            played.mean,
            yerr=np.nan_to_num(played.half),
            fmt=mark,
            color=colour,
            markersize=6,
            markeredgecolor="white",
            markeredgewidth=0.8,
            elinewidth=1.2,
            capsize=2.5,
            zorder=4,
        )


def _legend(figure: Figure, picture: Picture) -> None:
    """Below the axes, where it hides nothing: the curves, and beside them how to read them."""
    from matplotlib.lines import Line2D

    curves: list[Any] = []
    for index, curve in enumerate(picture.curves):
        colour, dash = _look(index)
        curves.append(Line2D([], [], color=colour, linestyle=dash, linewidth=2, label=curve.label))
    keys = _reading(picture)
    columns = [curves] if len(curves) <= _MOST_ROWS else [curves[::2], curves[1::2]]
    columns += [keys] if keys else []
    rows = max(map(len, columns))
    for column in columns:  # a legend is filled column by column
        column += [Line2D([], [], linestyle="", label=" ")] * (rows - len(column))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + rows * _ROW_INCHES)
    handles = [handle for column in columns for handle in column]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(columns))


def _reading(picture: Picture) -> list[Any]:
    """What thin lines, bands, dots and marks are, of those that are there."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    spreads = [curve.spread for curve in picture.curves if curve.spread is not None]
    keys: list[Any] = []
    if picture.raw_name and any(curve.raw for curve in picture.curves):
        keys.append(Line2D([], [], color=_GREY, alpha=0.6, linewidth=0.8, label=picture.raw_name))
    if picture.band_name and any(np.isfinite(spread.low).any() for spread in spreads):
        keys.append(Patch(color=_GREY, alpha=0.25, linewidth=0, label=picture.band_name))
    if any(len(stretches(spread)) > 1 for spread in spreads):
        look: dict[str, Any] = {"color": _GREY, "linestyle": _DOTS, "linewidth": 1.6}
        keys.append(Line2D([], [], label="dotted: mean of the seeds that go on", **look))
    if picture.evaluation_name and any(curve.evaluations for curve in picture.curves):
        mark: dict[str, Any] = {"marker": "o", "linestyle": "", "color": _GREY}
        keys.append(Line2D([], [], label=picture.evaluation_name, **mark))
    return keys


def _prepare_matplotlib() -> None:
    """Have Matplotlib keep its caches where it can, and say nothing about it."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    if "MPLCONFIGDIR" not in os.environ and not _home_is_writable():
        os.environ["MPLCONFIGDIR"] = _own_temp()


def _home_is_writable() -> bool:
    """Whether Matplotlib's folders for settings and caches are there or can be made."""
    for variable, default in (("XDG_CONFIG_HOME", ".config"), ("XDG_CACHE_HOME", ".cache")):
        base = os.environ.get(variable) or os.path.join(os.path.expanduser("~"), default)
        folder = os.path.join(base, "matplotlib")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            return False
        if not os.access(folder, os.W_OK | os.X_OK):
            return False
    return True


def _own_temp() -> str:
    """A folder for temporary files that is this user's alone; kept, for the font cache in it."""
    folder = os.path.join(tempfile.gettempdir(), f"rookery-matplotlib-{os.getuid()}")
    with contextlib.suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            return folder
    return tempfile.mkdtemp(prefix="rookery-matplotlib-")
