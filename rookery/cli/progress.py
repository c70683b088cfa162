"""Where progress goes: plain lines on standard error, or the live view if that is a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rookery.runs.bottleneck import bottleneck

if TYPE_CHECKING:
    from rookery.cli.live.view import LiveView
    from rookery.runs.checkpoint_files import Checkpoint
    from rookery.runs.config import RunConfig
    from rookery.runs.directory import RunDirectory
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
    lines = Lines(quiet="quiet" in switches)
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


class Lines:
    """Prints records as they come."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self.bound: str | None = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to give back."""

    def begin(self, run: RunDirectory) -> None:
        """A new run."""
        self.say(f"run {run.path}")

    def go_on(self, run: RunDirectory, checkpoint: Checkpoint) -> None:
        """Another session of a run, which the user has just named."""

    def say(self, text: str) -> None:
        """One line."""
        if self.quiet:
            return
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:
            # Whoever read this has gone; that is no reason to end a run.
            self.quiet = True

    def note(self, record: dict[str, Any]) -> None:
        """Remember what the closing lines will say."""
        self.bound = bottleneck(record) or self.bound

    def record(self, record: dict[str, Any]) -> None:
        """One record as a line."""
        self.note(record)
        if self.quiet:
            return
        head = f"{record['steps']:>12,} steps  {record['wall_secs']:8.1f} s"
        if "eval/return_mean" in record:
            self.say(
                f"{head}  evaluation {record['eval/return_mean']:.1f} over "
                f"{record['eval/episodes']} episodes of {record['eval/length_mean']:,.1f} steps"
            )
            return
        score, length = record.get("rollout/return_mean"), record.get("rollout/length_mean")
        shown = "-" if score is None else f"{score:.1f}"
        long = "-" if length is None else f"{length:,.1f}"
        line = f"{head}  return {shown:>8}  length {long:>9}  "
        line += f"{record['time/env_steps_per_s']:>9,.0f} steps/s"
        self.say(f"{line}  {self.bound}" if "train/lag_mean" in record else line)

    def finish(self, run: Run) -> None:
        """How it ended and what to do next."""
        finish = run.finish
        word = "Solved" if run.solved else finish.outcome.state
        self.say(
            f"{word}: {finish.outcome.reason} ({finish.steps:,} steps, {finish.updates:,} updates, "
            f"{finish.wall_secs:.1f} s{f'; {self.bound}' if self.bound else ''})"
        )
        self.say(f"rookery eval {run.path}")


def exit_code(run: Run) -> int:
    """The code of the command that ran ``run``."""
    return run.finish.outcome.exit_code
