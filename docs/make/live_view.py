"""Makes docs/pictures/live-view.png and .svg: trains CartPole on a pseudo-terminal.

    python docs/make/live_view.py

The picture is what the terminal shows shortly before the run ends. The PNG is drawn here, cell by
cell, with the font that matplotlib brings; the SVG is rich's.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont
from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
WORDS = ["train", "cartpole", "--engine", "local", "--actors", "2", "--eval-every", "12500"]
COLUMNS, ROWS = 100, 26

_FRAME = re.compile(r"\x1b\[\?25l\r(.*?)\x1b\[J\x1b\[\?25h", re.DOTALL)
_MOVES = re.compile(r"\x1b\[[0-9?]*[A-HJK]|\r")

THEME = TerminalTheme(
    (24, 26, 31),
    (205, 209, 217),
    [
        (24, 26, 31), (240, 113, 120), (137, 202, 120), (229, 192, 123),
        (97, 175, 239), (213, 125, 235), (75, 196, 209), (205, 209, 217),
    ],
)  # fmt: skip
SCALE = 2
FONT_SIZE = 15 * SCALE
LINE_HEIGHT = 1.22
MARGIN = 18 * SCALE
BAR = 34 * SCALE
"""Height of the window's title bar."""
_LIGHTS = ((255, 95, 86), (255, 189, 46), (39, 201, 63))
_DIM = 0.55


def record_run(words: list[str]) -> list[str]:
    """Every picture that the view drew, as text with colours."""
    with tempfile.TemporaryDirectory() as folder:
        master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8"}
        environment.pop("NO_COLOR", None)
        process = subprocess.Popen(
            [sys.executable, "-m", "rookery", *words],
            cwd=folder,
            stderr=terminal,
            env=environment | {"PYTHONPATH": str(PICTURES.parents[1])},
        )
        os.close(terminal)
        shown = b""
        while data := _read(master):
            shown += data
        if process.wait() != 0:
            raise SystemExit(shown.decode("utf-8", "replace"))
    return [_MOVES.sub("", frame) for frame in _FRAME.findall(shown.decode("utf-8"))]


def _read(master: int) -> bytes:
    try:
        return os.read(master, 1 << 16)
    except OSError:  # nobody has the other end open any more
        return b""


def choose(frames: list[str]) -> str:
    """The last picture before the end."""
    running = [frame for frame in frames if "running" in frame.splitlines()[0]]
    return running[-1] if running else frames[-1]


def as_lines(frame: str) -> list[Text]:
    """The picture below the command that made it."""
    prompt = Text.assemble(("$ ", "bold green"), " ".join(["rookery", *WORDS]))
    return [prompt, Text(), *AnsiDecoder().decode(frame.rstrip("\n"))]


def save_svg(lines: list[Text], path: Path) -> None:
    """The picture as text, without fonts from elsewhere."""
    with open(os.devnull, "w") as nowhere:
        console = Console(
            record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for line in lines:
            console.print(line, soft_wrap=True)
        drawn = console.export_svg(title="rookery", theme=THEME, unique_id="live-view")
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace("Fira Code", "DejaVu Sans Mono")
    path.write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n", "utf-8")


def save_png(lines: list[Text], path: Path) -> None:
    """The picture as pixels, in a window."""
    fonts = {bold: _font(bold) for bold in (False, True)}
    cell = fonts[False].getlength("M")
    height = round(FONT_SIZE * LINE_HEIGHT)
    size = (round(COLUMNS * cell) + 2 * MARGIN, len(lines) * height + BAR + MARGIN)
    image = Image.new("RGB", size, tuple(THEME.background_color))
    pen = ImageDraw.Draw(image)
    for number, light in enumerate(_LIGHTS):
        x, radius = MARGIN + 20 * SCALE * number, 6 * SCALE
        pen.ellipse((x, BAR / 2 - radius, x + 2 * radius, BAR / 2 + radius), fill=light)
    console = Console(width=COLUMNS, color_system="truecolor", force_terminal=True)
    for row, line in enumerate(lines):
        column = 0
        for segment in line.render(console):
            style = segment.style or Style.null()
            for letter in segment.text.removesuffix("\n"):
                corner = (MARGIN + column * cell, BAR + row * height)
                _draw_cell(
                    pen, letter, corner, (cell, height), _colour(style), fonts[bool(style.bold)]
                )
                column += 1
    image.save(path, optimize=True)


def _font(bold: bool) -> ImageFont.FreeTypeFont:
    weight = "bold" if bold else "normal"
    wanted = font_manager.FontProperties(family="DejaVu Sans Mono", weight=weight)
    return ImageFont.truetype(font_manager.findfont(wanted), FONT_SIZE)


def _colour(style: Style) -> tuple[int, int, int]:
    red, green, blue = style.color.get_truecolor(THEME) if style.color else THEME.foreground_color
    if not style.dim:
        return red, green, blue
    dark = THEME.background_color
    red, green, blue = (
        round(_DIM * bright + (1 - _DIM) * back)
        for bright, back in zip((red, green, blue), dark, strict=True)
    )
    return red, green, blue


def _draw_cell(
    pen: ImageDraw.ImageDraw,
    letter: str,
    corner: tuple[float, float],
    size: tuple[float, float],
    colour: tuple[int, int, int],
    font: ImageFont.FreeTypeFont,
) -> None:
    """One character; lines of boxes and dots of curves reach the edges of their cell."""
    (x, y), (width, height) = corner, size
    if 0x2800 <= ord(letter) < 0x2900:
        _draw_dots(pen, ord(letter) - 0x2800, corner, size, colour)
    elif letter in _JOINTS:
        left, right, top, bottom = round(x), round(x + width), round(y), round(y + height)
        thick = SCALE * (3 if letter == "━" else 1)
        across, down = round(x + width / 2) - thick // 2, round(y + height / 2) - thick // 2
        boxes = {
            "left": (left, down, across + thick - 1, down + thick - 1),
            "right": (across, down, right - 1, down + thick - 1),
            "up": (across, top, across + thick - 1, down + thick - 1),
            "down": (across, down, across + thick - 1, bottom - 1),
        }
        for side in _JOINTS[letter]:
            pen.rectangle(boxes[side], fill=colour)
    elif letter != " ":
        pen.text((x, y + height * 0.78), letter, colour, font, anchor="ls")


_JOINTS = {
    "─": ("left", "right"),
    "━": ("left", "right"),
    "│": ("up", "down"),
    "╭": ("right", "down"),
    "╮": ("left", "down"),
    "╰": ("right", "up"),
    "╯": ("left", "up"),
    "├": ("up", "down", "right"),
    "┤": ("up", "down", "left"),
    "┬": ("left", "right", "down"),
    "┴": ("left", "right", "up"),
}


def _draw_dots(
    pen: ImageDraw.ImageDraw,
    bits: int,
    corner: tuple[float, float],
    size: tuple[float, float],
    colour: tuple[int, int, int],
) -> None:
    """The eight dots of a braille character, at equal distances across cells."""
    order = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
    radius = 1.9 * SCALE
    for bit, (column, row) in enumerate(order):
        if bits >> bit & 1:
            x = corner[0] + size[0] * (column + 0.5) / 2
            y = corner[1] + size[1] * (row + 0.5) / 4
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)


def main() -> None:
    """Train, choose a picture and save it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURES, help="directory")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    frames = record_run(WORDS)
    lines = as_lines(choose(frames))
    save_svg(lines, out / "live-view.svg")
    save_png(lines, out / "live-view.png")
    print(f"{len(frames)} pictures; the one chosen is in {out}/live-view.png and .svg")


if __name__ == "__main__":
    main()
