"""Where progress goes: plain lines on standard error, or the live view if that is a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from rookery.runs.lines import Lines

if TYPE_CHECKING:
    from rookery.cli.live.view import LiveView
    from rookery.runs.config import RunConfig
    from rookery.training import Run

_NOT_FOR_DRAWING = ("", "dumb", "unknown")
"""Values of TERM of terminals whose cursor cannot be moved."""


def open_display(config: RunConfig, switches: Collection[str]) -> Lines | LiveView:
    """What shows the run.

    ::

        with open_display(config, switches) as display:
            display.begin(run)              # or display.go_on(run, checkpoint)
            display.record(record)          # as often as there is one
            display.finish(done)
    """
    by_episodes = config.metrics.every_episodes is not None
    lines = Lines(quiet="quiet" in switches, by_episodes=by_episodes)
    if lines.quiet or "plain" in switches or not can_draw():
        return lines
    from rookery.cli.live.view import LiveView

    return LiveView(config, lines)


def can_draw() -> bool:
    """Whether standard error is a terminal whose cursor can be moved, and ours to draw on."""
    if sys.stderr is None or not sys.stderr.isatty():
        return False
    known = os.environ.get("TERM", "") not in _NOT_FOR_DRAWING
    return known and in_foreground(sys.stderr.fileno())


def in_foreground(terminal: int) -> bool:
    """Whether nobody else, such as a shell, is talking to the user on ``terminal``."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return True  # not our controlling terminal: it has no foreground for us to be in


def exit_code(run: Run) -> int:
    """The code of the command that ran ``run``."""
    return run.finish.outcome.exit_code
