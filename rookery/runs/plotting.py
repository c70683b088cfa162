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
_PANEL_INCHES = (5.6, 3.3)
_PANEL_COLUMNS = 2
_DPI = 160
_GREY = "#4D4D4D"
_TAIL_WIDTH, _TAIL_ALPHA = 1.3, 0.75
_LEGEND: dict[str, Any] = {
    "handlelength": 1.7,
    "handletextpad": 0.6,
    "columnspacing": 1.4,
    "labelspacing": 0.25,
    "borderaxespad": 0.2,
    "borderpad": 0.1,
}
_ROW_INCHES, _LETTER_INCHES, _HANDLE_INCHES = 0.17, 0.062, 0.45
"""Of the legend."""

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
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": "#4D4D4D",
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
    tails: Sequence[Series] = ()
    """Runs that go on where the line ends."""
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
    beside: Sequence[Picture] = ()
    """Panels beside this one, of the same curves; the title of the first is that of all."""

    @property
    def panels(self) -> list[Picture]:
        """This one, and those beside it."""
        return [self, *self.beside]

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
        if picture.beside:
            _draw_panels(picture, figure)
        else:
            axes = figure.add_subplot()
            _draw(picture, axes)
            axes.set_ylabel(picture.y_name)
            axes.set_title(picture.title)
        _legend(figure, picture)
        file = io.BytesIO()
        figure.savefig(file, format=kind, metadata=undated.get(kind))
        return file.getvalue()


def _draw_panels(picture: Picture, figure: Figure) -> None:
    """Side by side, from left to right and from top to bottom."""
    rows = -(-len(picture.panels) // _PANEL_COLUMNS)
    width, height = _PANEL_INCHES
    figure.set_size_inches(width * _PANEL_COLUMNS, height * rows)
    for place, panel in enumerate(picture.panels, start=1):
        axes = figure.add_subplot(rows, _PANEL_COLUMNS, place)
        _draw(panel, axes)
        # What is drawn may be called by more words than fit beside a low panel.
        axes.set_title(panel.y_name, fontsize=11.0, fontweight="normal")
        if place + _PANEL_COLUMNS <= len(picture.panels):
            axes.set_xlabel("")
    if picture.title:
        figure.suptitle(picture.title, x=0.01, ha="left", size=12.5, weight="bold")


def _draw(picture: Picture, axes: Axes) -> None:
    """All but title, legend and the name of the vertical axis."""
    for index, curve in enumerate(picture.curves):
        colour, dash = _look(index)
        _draw_raw(axes, picture, curve, colour)
        _draw_spread(axes, picture, curve, colour, dash)
        _draw_evaluations(axes, picture, curve, colour, _MARKS[index % len(_MARKS)])
    axes.set_xlabel(picture.x_name)
    axes.grid(visible=True)
    axes.margins(x=0.02)


def _draw_raw(axes: Axes, picture: Picture, curve: Curve, colour: str) -> None:
    for line in curve.raw:
        x = line.x / picture.x_scale
        axes.plot(x, line.y, color=colour, alpha=0.35, linewidth=0.8, zorder=2)


def _draw_spread(axes: Axes, picture: Picture, curve: Curve, colour: str, dash: Any) -> None:
    """The line and its band, and what goes on after them."""
    spread = curve.spread
    if spread is None:
        return
    x = spread.x / picture.x_scale
    axes.fill_between(x, spread.low, spread.high, color=colour, alpha=0.16, linewidth=0, zorder=1)
    mark = "o" if picture.marked or len(x) == 1 else None
    line: dict[str, Any] = {"color": colour, "linestyle": dash, "marker": mark, "zorder": 3}
    axes.plot(x, spread.centre, linewidth=2.0, markersize=4, **line)
    for tail in curve.tails:
        x = tail.x / picture.x_scale
        axes.plot(x, tail.y, linewidth=_TAIL_WIDTH, alpha=_TAIL_ALPHA, markersize=3, **line)


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
    """Below the axes, where it hides nothing: the curves, then how to read them; in few rows."""
    from matplotlib.lines import Line2D

    handles: list[Any] = []
    for index, curve in enumerate(picture.curves):
        colour, dash = _look(index)
        handles.append(Line2D([], [], color=colour, linestyle=dash, linewidth=2, label=curve.label))
    read = [handle for panel in picture.panels for handle in _reading(panel)]
    handles += {handle.get_label(): handle for handle in reversed(read)}.values()
    width, height = figure.get_size_inches()
    columns = _columns([handle.get_label() for handle in handles], width)
    rows = -(-len(handles) // columns)
    figure.set_size_inches(width, height + rows * _ROW_INCHES)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, **_LEGEND)


def _columns(labels: Sequence[str], width: float) -> int:
    """As many columns as fit into ``width`` inches; they are filled one after another."""
    for columns in range(len(labels), 1, -1):
        parts = np.array_split(np.arange(len(labels)), columns)
        letters = sum(max(len(labels[index]) for index in part) for part in parts)
        if letters * _LETTER_INCHES + columns * _HANDLE_INCHES < width:
            return columns
    return 1


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
    if any(curve.tails for curve in picture.curves):
        look: dict[str, Any] = {"color": _GREY, "linewidth": _TAIL_WIDTH, "alpha": _TAIL_ALPHA}
        keys.append(Line2D([], [], label="seeds that go on alone", **look))
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
