"""A terminal to watch a command on: a pseudo-terminal, and the screen a person would see."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fork_server import own_the_terminal
from tests.forks import forked

REPOSITORY = Path(__file__).parents[1]
_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """What a VT100 shows after some text: cursor moves, erasing, scrolling, wrapping.

    ``wrapped`` counts the lines that ran over the right edge.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""] * rows
        self.above: list[str] = []
        self.row = self.column = 0
        self.cursor_shown = True
        self.wrapped = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        text = self._rest + text
        self._rest = ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                found = _SEQUENCE.match(text, at)
                if found is None:
                    self._rest = text[at:]
                    return
                self._obey(found[1], found[2])
                at = found.end()
                continue
            self._put(text[at])
            at += 1

    def _put(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self._down()
        elif letter >= " ":
            if self.column == self.columns:
                self.wrapped += 1
                self.column = 0
                self._down()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
            self.column += 1

    def _down(self) -> None:
        if self.row == self.rows - 1:
            self.above.append(self.lines.pop(0))
            self.lines.append("")
        else:
            self.row += 1

    def _obey(self, given: str, order: str) -> None:
        if order == "A":
            self.row = max(self.row - int(given or 1), 0)
        elif order == "H":
            self.row = self.column = 0
        elif order == "K":
            self.lines[self.row] = "" if given == "2" else self.lines[self.row][: self.column]
        elif order == "J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            self.lines[self.row + 1 :] = [""] * (self.rows - self.row - 1)
        elif given == "?25":
            self.cursor_shown = order == "h"
        else:
            assert order == "m", f"a sequence this terminal does not know: {given}{order}"

    def resize(self, columns: int, rows: int) -> None:
        """As xterm does: what is too wide is cut, and the cursor's line stays in sight."""
        self.columns = columns
        self.lines = [line[:columns] for line in self.lines]
        while len(self.lines) > rows:
            if self.row < len(self.lines) - 1:
                self.lines.pop()
            else:
                self.above.append(self.lines.pop(0))
                self.row -= 1
        self.lines += [""] * (rows - len(self.lines))
        self.rows = rows
        self.column = min(self.column, columns)

    def text(self) -> str:
        """What is in sight."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")

    def everything(self) -> str:
        """What is in sight and what has scrolled away."""
        return "\n".join(line.rstrip() for line in [*self.above, *self.lines]).rstrip("\n")


class Watched:
    """A command on a pseudo-terminal."""

    def __init__(
        self,
        words: tuple[str, ...],
        cwd: Path,
        columns: int,
        rows: int,
        environment: dict[str, str],
        *,
        afresh: bool,
    ) -> None:
        self.master, terminal = pty.openpty()
        _set_size(terminal, columns, rows)
        _keep_output(terminal)
        self.screen = Screen(columns, rows)
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        standard = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        options: dict[str, Any] = {"env": environment, "preexec_fn": own_the_terminal}
        if afresh:
            argv = [sys.executable, "-m", "rookery", *words]
            self.process = subprocess.Popen(argv, cwd=cwd, **standard, **options)
        else:
            self.process = forked(*words, cwd=cwd, **standard, **options)
        os.close(terminal)

    def read(self) -> bool:
        """Take in what has been written; False at the end."""
        ready, _, _ = select.select([self.master], [], [], 60.0)
        assert ready, "the command has been silent for a minute"
        try:
            data = os.read(self.master, 1 << 16)
        except OSError:  # nobody has the other end open any more
            data = b""
        text = self._decoder.decode(data)
        self.raw += text
        self.screen.feed(text)
        return bool(data)

    def until(self, seen: Callable[[Screen], bool]) -> None:
        """Read until the screen is as wanted."""
        while not seen(self.screen):
            assert self.read(), self.screen.everything()

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(columns, rows)
        _set_size(self.master, columns, rows)

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def end(self) -> int:
        """Read to the end; the exit code."""
        while self.read():
            pass
        return self.process.wait(60.0)

    def hang_up(self) -> None:
        """The terminal's window is closed."""
        os.close(self.master)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self.master)


@contextlib.contextmanager
def watch(
    *words: str, cwd: Path, columns: int = 80, rows: int = 24, **changes: str | None
) -> Iterator[Watched]:
    """``rookery`` with ``words`` on a terminal of its own; changes to the environment by name.

    Python looks at the language as it starts: where that is changed it is started afresh.
    """
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY),
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
    }
    for name in ("NO_COLOR", "LC_ALL", "LC_CTYPE", "COLUMNS", "LINES", "PYTHONUTF8"):
        environment.pop(name, None)
    for name, value in changes.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    afresh = any(name.startswith(("LANG", "LC_", "PYTHON")) for name in changes)
    watched = Watched(words, cwd, columns, rows, environment, afresh=afresh)
    try:
        yield watched
    finally:
        watched.close()


def _keep_output(descriptor: int) -> None:
    """Ctrl-C discards what a terminal has not read yet; a test may read late on a busy machine."""
    modes = termios.tcgetattr(descriptor)
    modes[3] |= termios.NOFLSH
    termios.tcsetattr(descriptor, termios.TCSANOW, modes)


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
