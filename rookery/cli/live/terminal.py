"""A terminal to draw on: a picture that is replaced in place, and text that goes above it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
from collections import deque
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.text import Text

from rookery.cli.live.cells import ASCII, UNICODE, Glyphs, Line

STYLES = {
    "": "",
    "border": "dim",
    "label": "dim",
    "value": "bold",
    "title": "bold cyan",
    "heading": "cyan",
    "bar": "cyan",
    "curve": "cyan",
    "wait": "yellow",
    "mark": "bold magenta",
    "goal": "yellow",
    "good": "bold green",
    "alarm": "bold red",
}
"""Names of styles; colours of the terminal's own palette, so that they suit its background."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)")
_REMEMBERED = 200
_WRITE_SECS = 1.0


def speaks_unicode(encoding: str | None, environ: Mapping[str, str], utf8_mode: bool) -> bool:
    """Whether the terminal shows more than ASCII.

    Python speaks UTF-8 in the C locale as well (and says so in LC_CTYPE), but a user who chose that
    locale asked for ASCII.
    """
    if "utf" not in (encoding or "").lower():
        return False
    if not utf8_mode or environ.get("PYTHONUTF8") == "1":
        return True
    return (environ.get("LC_ALL") or environ.get("LANG") or "").upper() not in ("C", "POSIX")


class Screen:
    """Draws on the terminal behind a descriptor.

    The picture stands above the cursor. Drawing is one write: back to its first line, the new text
    above it, the new picture. A terminal that is gone is drawn on no more, without a word.
    """

    def __init__(self, descriptor: int, like: TextIO) -> None:
        self.descriptor = descriptor
        self.encoding = like.encoding or "ascii"
        unicode = speaks_unicode(like.encoding, os.environ, bool(sys.flags.utf8_mode))
        self.glyphs: Glyphs = UNICODE if unicode else ASCII
        self.gone = False
        self._drawn = 0
        self._size = (0, 0)
        self._said: deque[str] = deque(maxlen=_REMEMBERED)
        console = Console(file=like, force_terminal=True)
        self._styles = {name: _codes(console, style) for name, style in STYLES.items()}

    def size(self) -> tuple[int, int]:
        """Columns and rows now."""
        columns = rows = 0
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(self.descriptor)
        return columns or 80, rows or 24

    def forget(self) -> None:
        """Draw the next picture where the cursor is; the last one stays."""
        self._drawn = 0

    def draw(self, picture: list[Line], above: list[str]) -> None:
        """Replace the picture, with ``above`` as new lines over it."""
        size, before = self.size(), self._size
        self._size = size
        above = [shown for line in above if (shown := self._clean(line))]
        self._said.extend(above)
        if size[0] < before[0] or self._drawn >= size[1]:
            # What is drawn was wrapped or scrolled by the terminal: begin with a clean one.
            start = "\x1b[H\x1b[J"
            room = max(size[1] - len(picture) - 1, 0)
            above = list(self._said)[len(self._said) - min(room, len(self._said)) :]
        else:
            start = f"\x1b[{self._drawn}A" if self._drawn else ""
            start += "\x1b[J" if above else ""  # they may be longer than a row
        lines = [*above, *map(self._painted, picture)]
        self._drawn = len(picture)
        body = "".join(f"\x1b[2K{line}\r\n" for line in lines)
        self._write(f"\x1b[?25l\r{start}{body}\x1b[J\x1b[?25h")

    def say(self, lines: list[str]) -> None:
        """Lines without a picture."""
        self._write("".join(f"{self._clean(line)}\r\n" for line in lines))

    def _clean(self, line: str) -> str:
        """What a line looks like in the end: without escapes, and after its last return."""
        line = _ESCAPES.sub("", line).rstrip().rpartition("\r")[2].expandtabs()
        return "".join(letter for letter in line if letter.isprintable())

    def _painted(self, line: Line) -> str:
        out = []
        for text, style in line:
            on, off = self._styles[style]
            out.append(f"{on}{text}{off}")
        return "".join(out)

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode(self.encoding, "replace"))
        while rest and not self.gone:
            try:
                rest = rest[os.write(self.descriptor, rest) :]
            except BlockingIOError:
                select.select([], [self.descriptor], [], _WRITE_SECS)
            except OSError:
                self.gone = True

    def close(self) -> None:
        """Let go of the descriptor."""
        os.close(self.descriptor)


def _codes(console: Console, style: str) -> tuple[str, str]:
    """What switches a style on and off on this terminal, in its colours or without (NO_COLOR)."""
    with console.capture() as captured:
        console.print(Text("|", style), end="")
    on, _, off = captured.get().partition("|")
    return on, off


class Diversion:
    """Everything written to the terminal, caught before it tears the picture.

    Standard error, and standard output if it is the same terminal, lead into a pipe: also what
    other processes and native code write. The terminal itself stays reachable as ``terminal``.
    """

    def __init__(self) -> None:
        _flush()
        self._pending = b""
        self.pipe, entrance = os.pipe()
        os.set_blocking(self.pipe, False)
        error = sys.stderr.fileno()
        self.terminal = os.dup(error)
        self._saved = {error: os.dup(error)}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            out = sys.stdout.fileno()
            if os.isatty(out) and os.fstat(out).st_rdev == os.fstat(error).st_rdev:
                self._saved[out] = os.dup(out)
        for descriptor in self._saved:
            os.dup2(entrance, descriptor)
        os.close(entrance)

    def lines(self) -> list[str]:
        """Whole lines written since the last call."""
        while True:
            try:
                data = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                break
            if not data:
                break
            self._pending += data
        *lines, self._pending = self._pending.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def end(self) -> list[str]:
        """Lead everything back to the terminal; what was still on its way. Once is enough."""
        if not self._saved:
            return []
        _flush()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)
            os.close(saved)
        self._saved.clear()
        rest = [*self.lines(), self._pending.decode("utf-8", "replace")]
        os.close(self.pipe)
        return [line for line in rest if line]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
