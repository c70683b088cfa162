"""``rookery train --seeds`` on a terminal: a row for each seed, redrawn in place."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from types import TracebackType

from rookery.cli.live.cells import Line, fit, width_of
from rookery.cli.live.terminal import Screen
from rookery.cli.progress import in_foreground
from rookery.cli.side_by_side import Child

_KNOWN_ANYWAY = ("run ", "rookery eval ")
"""Beginnings of lines that say where a seed's run is: all are in one directory."""
_WARNING = "WARNING"


class SeedRows:
    """Shows the last line that each seed printed; warnings stand above.

    ::

        with SeedRows(children) as rows:
            run_all(children, at_once=2, listener=rows)
    """

    def __init__(self, children: Sequence[Child]) -> None:
        self.children = children
        self._last: dict[str, str] = {}
        self._said: list[str] = []
        self._shown: tuple[object, ...] = ()
        self._screen = Screen(os.dup(sys.stderr.fileno()), sys.stderr)

    def __enter__(self) -> SeedRows:
        self.look()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.look()
        self._screen.close()

    def say(self, text: str) -> None:
        """A line that stays, above the rows."""
        self._said.append(text)

    def hear(self, child: Child, line: str) -> None:
        """A seed has printed ``line``."""
        if line.startswith(_WARNING):
            self.say(f"{child.name}: {line}")
        elif not line.startswith(_KNOWN_ANYWAY):
            self._last[child.name] = line

    def look(self) -> None:
        """Draw what has changed."""
        screen = self._screen
        states = [(child.started, child.code) for child in self.children]
        state = (dict(self._last), states, screen.size())
        if not self._said and state == self._shown:
            return
        self._shown = state
        said, self._said = self._said, []
        if in_foreground(screen.descriptor):
            screen.draw(self._picture(*screen.size()), said)
        else:
            screen.forget()
            screen.say(said)

    def _picture(self, columns: int, rows: int) -> list[Line]:
        """All seeds; those that train, and how many others there are, if there is no room."""
        shown = list(self.children)
        room = max(rows - 1, 1)
        if len(shown) > room:
            shown = [child for child in shown if child.started and child.code is None][: room - 1]
        width = max(columns - 1, 1)
        lines = [self._row(child, width) for child in shown]
        if len(shown) < len(self.children):
            lines.append(self._others(shown))
        return [fit(line, width) for line in lines]

    def _row(self, child: Child, width: int) -> Line:
        state = "starting" if child.started else "waits"
        failed = child.code is not None and child.code != 0
        text = self._screen.glyphs.legible(self._last.get(child.name, state))
        name: Line = [(f"{child.name}  ", "title")]
        if width_of(name) + width_of([(text, "")]) > width:
            text = re.sub(" {2,}", "  ", text.strip())  # columns of records are wide
        return [*name, (text, "alarm" if failed else "")]

    def _others(self, shown: Sequence[Child]) -> Line:
        others = [child for child in self.children if child not in shown]
        ended = sum(child.code is not None for child in others)
        wait = sum(not child.started for child in others)
        train = len(others) - ended - wait
        told = [f"{n} {what}" for n, what in ((ended, "ended"), (train, "train"), (wait, "wait"))]
        return [("others: ", "label"), (", ".join(each for each in told if each[0] != "0"), "")]
