"""Styled text measured in terminal cells, and numbers and times as a person reads them.

A line is a list of pieces, each a text and the name of its style in
:data:`rookery.cli.live.terminal.STYLES`. Characters may be two cells wide, as in a path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

Piece = tuple[str, str]
Line = list[Piece]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters that depend on what the terminal can show."""

    unicode: bool
    full: str
    empty: str
    horizontal: str
    vertical: str
    corners: str
    """Top left, top right, bottom left, bottom right."""
    tees: str
    """Towards the right, left, bottom, top."""
    mark: str
    cut: str
    interval: str
    dot: str

    def legible(self, text: str) -> str:
        """``text`` without what this terminal cannot show."""
        if not self.unicode:
            text = text.encode("ascii", "replace").decode()
        return "".join(letter if letter.isprintable() else "?" for letter in text)


UNICODE = Glyphs(True, "━", "─", "─", "│", "╭╮╰╯", "├┤┬┴", "◆", "…", "±", "·")
ASCII = Glyphs(False, "#", "-", "-", "|", "++++", "++++", "o", "~", "+-", "-")


def width_of(line: Line) -> int:
    """Cells that ``line`` takes."""
    return sum(cell_len(text) for text, _ in line)


def fit(line: Line, width: int) -> Line:
    """``line`` cropped and padded to exactly ``width`` cells."""
    out: Line = []
    left = width
    for text, style in line:
        size = cell_len(text)
        if size > left:
            out.append((set_cell_size(text, left), style))
            return out
        out.append((text, style))
        left -= size
    if left:
        out.append((" " * left, ""))
    return out


def spread(left: Line, right: Line, width: int) -> Line:
    """``left`` at the left and ``right`` at the right; ``left`` gives way."""
    room = width - width_of(right)
    return fit(right, width) if room < 1 else [*fit(left, room), *right]


def short_of(line: Line, width: int) -> Line:
    """``line`` without as many of its last pieces as make it fit; the first two stay."""
    while len(line) > 2 and width_of(line) > width:
        line = line[:-1]
    return line


def joined(parts: list[Line], gap: str) -> Line:
    """Parts in one line."""
    line: Line = []
    for part in parts:
        line += [(gap, ""), *part] if line else part
    return line


def flow(parts: list[Line], width: int, most: int, gap: str = "   ") -> list[Line]:
    """Parts one after another, in as few lines as they fit; at most ``most`` lines."""
    lines: list[Line] = [[]]
    for whole in parts:
        part = short_of(whole, width)
        longer = joined([lines[-1], part], gap) if lines[-1] else part
        if width_of(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines[: max(most, 0)] if any(lines) else []


def bar(share: float, width: int, glyphs: Glyphs, style: str) -> Line:
    """A horizontal bar, ``share`` of it full."""
    full = round(min(max(share, 0.0), 1.0) * width)
    return [(glyphs.full * full, style), (glyphs.empty * (width - full), "border")]


def tail(text: str, width: int, cut: str) -> str:
    """The end of ``text`` that fits, as for a path."""
    if cell_len(text) <= width:
        return text
    while text and cell_len(text) > width - 1:
        text = text[1:]
    return cut + text if width > 0 else ""


def number(value: float) -> str:
    """Four digits or so: 12,345, 312.4, 0.0123, 1.2e-05."""
    size = abs(value)
    if not math.isfinite(value):
        return str(value)
    if size >= 1e7 or 0 < size < 1e-4:
        return f"{value:.2g}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def number_beside(value: float, mean: float) -> str:
    """``value`` with as many decimals as :func:`number` gives ``mean``, as in 468.0 ± 3.9."""
    whole, point, decimals = number(mean).partition(".")
    if "e" in whole + decimals:
        return number(value)
    return f"{value:,.{len(decimals) if point else 0}f}"


def rounded(count: float) -> str:
    """A count in few characters: 950, 61k, 1.2M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            scaled = count / size
            return f"{scaled:.3g}{unit}" if abs(scaled) < 1000 else f"{scaled:.0f}{unit}"
    return f"{count:.4g}"


def clock(secs: float) -> str:
    """Seconds as 0:07, 12:40, 3:05:00 or 4d 03:00."""
    whole = max(int(secs), 0)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d {hours % 24:02}:{minutes % 60:02}"
    if hours:
        return f"{hours}:{minutes % 60:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"
