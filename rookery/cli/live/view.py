"""The live view: a thread that draws what the records say.

The thread that trains only hands over records::

    view = LiveView(config, lines)
    view.begin(run)                 # and nothing else may write to the terminal
    view.record(record)             # appended to a queue
    view.finish(done)               # the last picture stays; the closing lines follow

Drawing competes with training for the interpreter, so it happens ``DRAWS_PER_SEC`` times a second
at most (one picture costs about a millisecond), and only when something has changed.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rookery.cli.live.frame import BOX_HEIGHT, compose
from rookery.cli.live.story import Record, Story
from rookery.cli.live.terminal import Diversion, Screen
from rookery.cli.progress import in_foreground
from rookery.core.errors import UserError
from rookery.runs.config import RunConfig
from rookery.runs.lines import Lines
from rookery.runs.metrics import read_metrics

if TYPE_CHECKING:
    from rookery.engines.engine import Finish
    from rookery.runs.checkpoint_files import Checkpoint
    from rookery.runs.directory import RunDirectory
    from rookery.runs.stage import Stage
    from rookery.training import Run

_LOG = logging.getLogger(__name__)

DRAWS_PER_SEC = 2
_SAY_SECS = 0.25
"""Text for above the view waits at most this long, so that a flood of it is drawn together."""
_MOST_SAID_ROWS = 5
"""Rows that the picture leaves to the newest lines above it."""
_END_SECS = 5.0
"""How long the end of a run waits for a picture that is being drawn."""


class LiveView:
    """Shows a run on the terminal; stands where :class:`Lines` stands."""

    def __init__(self, config: RunConfig, lines: Lines) -> None:
        self.config = config
        self.lines = lines
        self._heard: deque[tuple[Record, float]] = deque()
        self._show: _Show | None = None

    def __enter__(self) -> LiveView:
        return self

    def say(self, text: str) -> None:
        """One line, before the view is there."""
        self.lines.say(text)

    def begin(self, run: RunDirectory) -> None:
        """A new run."""
        self._start(Story(self.config, run.path, time.monotonic()))

    def go_on(self, run: RunDirectory, checkpoint: Checkpoint) -> None:
        """Another session of a run; its curve so far is in its metrics."""
        secs = float(checkpoint.parts["session"].data["wall_secs"])
        story = Story(self.config, run.path, time.monotonic(), steps=checkpoint.steps, secs=secs)
        story.recall(_history(run.metrics_path))
        self._start(story)

    def _start(self, story: Story) -> None:
        try:
            self._show = _Show(story, self._heard)
        except OSError as error:
            _LOG.warning("no live view: %s", error)
            self._show = None
        else:
            self._show.start()

    def stage(self, stage: Stage | None) -> None:
        """What it does now that is no training."""
        if self._show is None or self._show.failed:
            self.lines.stage(stage)
        else:
            self._show.story.enter(stage, time.monotonic())

    def steps(self, steps: int) -> None:
        """How far it is."""
        if self._show is not None:
            self._show.story.ahead = steps, time.monotonic()

    def record(self, record: Record) -> None:
        """Hand over a record."""
        self.lines.note(record)
        if self._show is None or self._show.failed:
            self.lines.record(record)
        else:
            self._heard.append((record, time.monotonic()))

    def finish(self, run: Run) -> None:
        """The last picture and how it ended."""
        finish = run.finish
        self._end(finish.outcome.state, finish)
        self.lines.finish(run)

    def _end(self, state: str, finish: Finish | None = None) -> None:
        show, self._show = self._show, None
        if show is not None:
            show.end(state, finish)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")


class _Show:
    """The thread, the terminal and what is to be drawn on it."""

    def __init__(self, story: Story, heard: deque[tuple[Record, float]]) -> None:
        self.story = story
        self.heard = heard
        self.failed = False
        self._said: list[str] = []
        self._num_said = 0
        self._diversion = Diversion()
        self._screen = Screen(self._diversion.terminal, sys.stderr)
        self._bell = os.eventfd(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live view", daemon=True)
        self._continued: Any = None

    def start(self) -> None:
        """Begin to draw."""
        if threading.current_thread() is threading.main_thread():
            # After Ctrl-Z and fg the shell's lines stand where the picture stood.
            self._continued = signal.signal(signal.SIGCONT, lambda *_: self._screen.forget())
        self._thread.start()

    def _run(self) -> None:
        """Draw now and then until it is over."""
        shown: tuple[Any, ...] = ()
        looked = -math.inf
        try:
            while not self._over.is_set():
                wait = looked + self._pause() - time.monotonic()
                select.select([self._diversion.pipe, self._bell], [], [], max(wait, 0.0))
                self._said += self._diversion.lines()
                now = time.monotonic()
                if now < looked + self._pause():
                    continue
                looked = now
                self._hear()
                story, secs = self.story, int(self.story.elapsed_secs(now))
                state = (story.moment, story.stage, story.ahead, self._screen.size(), secs)
                if self._said or state != shown:
                    self._draw(now)
                    shown = state
        except Exception as error:
            self._fail(error)

    def _pause(self) -> float:
        return _SAY_SECS if self._said else 1 / DRAWS_PER_SEC

    def _hear(self) -> None:
        while self.heard:
            self.story.hear(*self.heard.popleft())

    def _draw(self, now: float) -> None:
        said, self._said = self._said, []
        screen = self._screen
        if not in_foreground(screen.descriptor):
            screen.forget()
            screen.say(said)
            return
        columns, rows = screen.size()
        self._num_said = min(self._num_said + len(said), _MOST_SAID_ROWS)
        rows = max(rows - self._num_said, BOX_HEIGHT + 1) if rows > BOX_HEIGHT else rows
        screen.draw(compose(self.story, now, columns, rows, screen.glyphs), said)

    def end(self, state: str, finish: Finish | None) -> None:
        """Stop the thread, draw the last picture and give the terminal back."""
        self._over.set()
        os.eventfd_write(self._bell, 1)
        self._thread.join(_END_SECS)
        if self._continued is not None:
            signal.signal(signal.SIGCONT, self._continued)
        self._said += self._diversion.end()
        if self._thread.is_alive():
            return  # the terminal takes no more, as after Ctrl-S
        try:
            if not self.failed:
                self._conclude(state, finish)
        except Exception as error:
            self._fail(error)
        self._screen.close()
        os.close(self._bell)

    def _conclude(self, state: str, finish: Finish | None) -> None:
        self._hear()
        now, story = time.monotonic(), self.story
        steps, secs, restarts = story.steps, story.elapsed_secs(now), story.restarts
        if finish is not None:
            steps, secs, restarts = finish.steps, finish.wall_secs, finish.restarts
        story.end(state, steps=steps, secs=secs, restarts=restarts)
        self._draw(now)

    def _fail(self, error: Exception) -> None:
        """A fault of the view is no reason to end a run."""
        self.failed = True
        self._screen.say(self._said + self._diversion.end())
        _LOG.warning("the live view ended (%r); the run goes on, in plain lines", error)


def _history(path: Path) -> Iterable[Record]:
    """What earlier sessions wrote; nothing if it cannot be read: that is no reason not to train."""
    try:
        return read_metrics(path)
    except UserError:
        return ()
