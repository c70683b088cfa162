"""Progress as plain lines on standard error; in a notebook one line that changes.

::

    lines = lines_for_python(config, quiet=False)
    lines.begin(run)              # or lines.go_on(run, checkpoint)
    lines.record(record)          # as often as there is one
    lines.finish(done)
"""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from rookery.runs.bottleneck import bottleneck
from rookery.runs.checkpoint_files import directory_name

if TYPE_CHECKING:
    from rookery.runs.checkpoint_files import Checkpoint
    from rookery.runs.config import RunConfig
    from rookery.runs.directory import RunDirectory
    from rookery.runs.stage import Stage
    from rookery.training import Run

STAGE_SECS = 10.0
"""After so long without a line, one says how far a stage is."""


class Lines:
    """Prints records as they come."""

    def __init__(self, *, quiet: bool = False, by_episodes: bool = False) -> None:
        """``by_episodes``: records come each so many episodes, and tell of these."""
        self.quiet, self.by_episodes = quiet, by_episodes
        self._secs = 0.0
        """Training time at the last record."""
        self.bound: str | None = None
        self._stage = ""
        self._said = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to give back."""

    def begin(self, run: RunDirectory) -> None:
        """A new run."""
        self.say(f"run {run.path}")

    def go_on(self, run: RunDirectory, checkpoint: Checkpoint) -> None:
        """Another session of a run, which the user has just named."""
        self._secs = float(checkpoint.parts["session"].data["wall_secs"])

    def say(self, text: str) -> None:
        """One line."""
        if self.quiet:
            return
        self._said = time.monotonic()
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:
            # Whoever read this has gone; that is no reason to end a run.
            self.quiet = True

    def stage(self, stage: Stage | None) -> None:
        """What it does now that is no training: once, and now and then how far that is."""
        before, self._stage = self._stage, "" if stage is None else stage.what
        if stage is None:
            return
        news = stage.what != before and not stage.brief
        if news or time.monotonic() - self._said >= STAGE_SECS:
            self.say(stage.text)

    def steps(self, steps: int) -> None:
        """Steps since the last record, which has its line."""

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
            self.line(
                f"{head}  evaluation {record['eval/return_mean']:.1f} over "
                f"{record['eval/episodes']} episodes of {record['eval/length_mean']:,.1f} steps"
            )
            return
        if "record/films" in record:
            film = f"{directory_name(int(record['record/steps']))}.mp4"
            self.line(f"{head}  film videos/{film}, return {record['record/return_mean']:.1f}")
            return
        if self.by_episodes:
            self.line(episode_line(record, record["wall_secs"] - self._secs))
            self._secs = record["wall_secs"]
            return
        score, length = record.get("rollout/return_mean"), record.get("rollout/length_mean")
        shown = "-" if score is None else f"{score:.1f}"
        long = "-" if length is None else f"{length:,.1f}"
        line = f"{head}  return {shown:>8}  length {long:>9}  "
        line += f"{record['time/env_steps_per_s']:>9,.0f} steps/s"
        self.line(f"{line}  {self.bound}" if "train/lag_mean" in record else line)

    def line(self, text: str) -> None:
        """A record's line."""
        self.say(text)

    def finish(self, run: Run) -> None:
        """How it ended and what to do next."""
        finish = run.finish
        word = "Solved" if run.solved else finish.outcome.state
        self.say(
            f"{word}: {finish.outcome.reason} ({finish.steps:,} steps, {finish.updates:,} updates, "
            f"{finish.wall_secs:.1f} s{f'; {self.bound}' if self.bound else ''})"
        )
        self.say(f"rookery eval {shlex.quote(str(run.path))}")


_MEANS = {
    "rollout/return_mean": "Mean Reward",
    "rollout/length_mean": "Mean Length",
    "window/loss": "Mean Loss",
    "window/policy_loss": "Mean Policy Loss",
    "window/value_loss": "Mean Value Loss",
    "window/value_mean": "Mean Q Value",
}
"""Of the last episodes, as RPC RL calls them."""


def episode_line(record: dict[str, Any], secs: float) -> str:
    """A record by episodes, ``secs`` after the one before: RPC RL's fields, of those there are."""
    parts = [f"Episode {record['rollout/episodes']}", f"Step {record['steps']}"]
    if (epsilon := record.get("train/epsilon")) is not None:
        parts.append(f"Epsilon {epsilon:.4f}")
    parts += [f"{name} {record[key]:.3f}" for key, name in _MEANS.items() if key in record]
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    return " - ".join([*parts, f"Time Delta {secs:.1f}", f"Time {now}"])


class NotebookLine(Lines):
    """The newest record in place of the one before."""

    width = 0

    def stage(self, stage: Stage | None) -> None:
        """In place of a record."""
        if not self.quiet and stage is not None:
            self.line(stage.text)

    def line(self, text: str) -> None:
        """Write over what stands there."""
        print(f"\r{text:<{self.width}}", end="", file=sys.stderr, flush=True)
        self.width = max(self.width, len(text))

    def finish(self, run: Run) -> None:
        """How it ended, on lines of their own."""
        if self.width and not self.quiet:
            print(file=sys.stderr)
        super().finish(run)


def lines_for_python(config: RunConfig, *, quiet: bool) -> Lines:
    """What a program, or the notebook that this runs in, is shown of a run."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    kind = NotebookLine if hasattr(shell, "kernel") else Lines
    return kind(quiet=quiet, by_episodes=config.metrics.every_episodes is not None)
