"""One session of a run: what is written down and when, and when it is over.

It lives where the learner lives::

    session = Session(...)
    session.begin(save_parts)
    while session.outcome is None:
        update = learner.step()
        session.after_update(update, save_parts)
        for steps in session.evaluations_due():
            session.on_evaluation(steps, evaluate(...))
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from rookery.core.errors import StopRun, UserError
from rookery.core.update import Update
from rookery.nets.policy import Policy
from rookery.roles.recorder import Film
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import State
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.runs.films import Films
from rookery.runs.history import History
from rookery.runs.inside import Inside
from rookery.runs.metrics import EpisodeWindow, FanOut, MetricSink, cut, load_sink
from rookery.runs.stage import FIRST_BATCH, Stage

Record = dict[str, Any]
Parts = Callable[[], dict[str, State]]
OutcomeState = Literal["finished", "solved", "interrupted", "stopped"]

TELL_SECS = 0.5
"""How often displays are told about steps."""
RETRY_SHARE = 0.02
"""After an evaluation that did not confirm a score, train this share more before the next."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a session ended."""

    state: OutcomeState
    reason: str

    @property
    def exit_code(self) -> int:
        """0, or 128 and the signal's number when one ended the run: 130 for Ctrl-C."""
        if self.state != "interrupted":
            return 0
        return 128 + (signal.SIGTERM if self.reason == "SIGTERM" else signal.SIGINT)


@dataclass(slots=True)
class Callbacks:
    """What the user's code is told. Raise :class:`StopRun` in any of them to end the run."""

    on_update: Callable[[Record], Any] | None = None
    """After each update (under ``local``: after each record)."""
    on_episode: Callable[[Record], Any] | None = None
    """After each training episode: return, length, steps."""
    on_evaluation: Callable[[Record], Any] | None = None
    """After each evaluation."""
    on_record: list[Callable[[Record], Any]] = field(default_factory=list)
    """Each record as it is written; for displays."""
    on_stage: Callable[[Stage | None], Any] | None = None
    """What the run does besides training, None: it trains; for displays."""
    on_steps: Callable[[int], Any] | None = None
    """Steps of the run, about once a second; for displays."""
    on_notice: Callable[[str], Any] | None = None
    """What a user should see once, such as who has joined; for displays."""

    def tell_stage(self, stage: Stage | None) -> None:
        """Say what is done now."""
        if self.on_stage is not None:
            self.on_stage(stage)


class Session:
    """Logging, checkpoints, evaluations and the end of a run."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        callbacks: Callbacks | None = None,
        fleet: Callable[[], Record] | None = None,
        sinks: Iterable[MetricSink] | None = None,
        policy: Policy | None = None,
        beside: Parts | None = None,
    ) -> None:
        """``beside`` saves what lies outside of checkpoints, and gives what they say of it."""
        self.config = config
        self.run = run
        self.callbacks = callbacks or Callbacks()
        self.fleet = fleet or dict
        self.store = CheckpointStore(run.checkpoints, config.checkpoint.keep)
        self.films = Films(self.store)
        self.history = History(run.history, config.checkpoint.history)
        self.window = EpisodeWindow(config.metrics.window)
        self.outcome: Outcome | None = None
        self.steps = 0
        self._learned_at = 0  # steps at the last update
        self._told: Record = {}  # what the last update told
        self.updates = 0
        self.wall_before = 0.0
        self.started = time.monotonic()
        self.pending: list[int] = []
        self.saved_at = -1
        self._saved_moment = self.started
        self.evaluated_at = 0
        self.unconfirmed_at = 0
        self.reached_at: dict[str, float] | None = None
        self._purged_at = 0  # where a resumed run goes on: what was told beyond is hidden
        self._last_log = (0, self.started)
        self._stage: Stage | None = FIRST_BATCH
        self._told_steps = 0.0
        self._sinks = FanOut(sinks) if sinks is not None else None
        self._policy = policy
        self._beside = beside
        self._inside: Inside | None = None

    @property
    def wall_secs(self) -> float:
        """Training time over all sessions."""
        return self.wall_before + time.monotonic() - self.started

    @property
    def sinks(self) -> FanOut:
        """Opened on first use, after a resume has cut what lies beyond its checkpoint."""
        if self._sinks is None:
            purge = self._purged_at + 1 if self._purged_at else None
            names = self.config.metrics.sinks
            self._sinks = FanOut([load_sink(name, self.run, purge_step=purge) for name in names])
        return self._sinks

    def _look_inside(self) -> None:
        """Show the network in TensorBoard, if that was asked for."""
        wanted = self.config.metrics
        if self._policy is None or not (wanted.histograms or wanted.graph):
            return
        if self._inside is None:
            self._inside = Inside(
                self.run.tensorboard_dir,
                self._policy,
                graph=wanted.graph,
                histograms=wanted.histograms,
                purge_step=self._purged_at + 1 if self._purged_at else None,
            )
        self._inside.note(self.steps)

    def begin(self, parts: Parts) -> None:
        """Call before the first update, after :meth:`load_state`: the weights training starts from.

        Whatever was written beyond this point, by a session that was killed, is forgotten.
        """
        self.history.cut(self.steps)
        self._note(parts)

    def _note(self, parts: Parts, *, end: bool = False) -> None:
        """Add to the history if it is time; nothing was learned before the first step."""
        wall_secs = self.wall_secs if self.steps else 0.0
        self.history.note(wall_secs, self.steps, lambda: parts()["weights"].arrays, end=end)

    def after_update(self, update: Update, parts: Parts) -> None:
        """Note an update; log, save and ask for evaluations where due; see whether it is over."""
        config = self.config
        before, self.steps, self.updates = self.steps, update.steps, update.updates
        learned_before, self._learned_at = self._learned_at, update.steps
        self._told = update.metrics
        episodes_before = self.window.total
        if config.metrics.every_episodes is not None:
            self.window.add_update(update.metrics)
        self.window.add(update.returns, update.lengths, update.info)
        self._call_back(update)
        self._tell_steps()
        if self._stage is not None:
            self.tell_stage(None)
        self._note(parts)
        if self._wants_record(before, episodes_before):
            self.write(update.metrics)
            self._look_inside()
        if self._wants_evaluation(learned_before) or self._wants_film_alone(learned_before):
            self._save(parts, look=True)
        elif self._overdue() or _crossed(learned_before, self.steps, config.checkpoint.every_steps):
            self._save(parts)
        self._see_whether_over()

    def fill(self, steps: int, begin_at: int) -> None:
        """Note ``steps`` of which none could be learned from yet, as learning begins at about
        ``begin_at``; see whether it is over.

        Checkpoints and evaluations that fall due meanwhile are made after the next update.
        """
        before, self.steps = self.steps, steps
        if self._tell_steps():
            self.tell_stage(Stage("filling replay", steps, begin_at, "steps", brief=True))
        if self._wants_record(before, self.window.total):
            self.write({})
        self._see_whether_over()

    def _call_back(self, update: Update) -> None:
        try:
            if self.callbacks.on_episode is not None:
                for score, length in zip(update.returns, update.lengths, strict=True):
                    record = {"return": float(score), "length": int(length), "steps": self.steps}
                    self.callbacks.on_episode(record)
            if self.callbacks.on_update is not None:
                record = {"steps": self.steps, "updates": self.updates, **update.metrics}
                self.callbacks.on_update(record)
        except StopRun as request:
            self.stop("stopped", str(request) or "a callback asked for it")

    def write(self, values: Record) -> None:
        """Write one record."""
        moment = time.monotonic()
        last_steps, last_moment = self._last_log
        self._last_log = (self.steps, moment)
        rate = (self.steps - last_steps) / max(moment - last_moment, 1e-9)
        self._emit(
            self.window.summary() | values | {"time/env_steps_per_s": rate} | dict(self.fleet())
        )

    def _emit(self, values: Record) -> None:
        head = {"steps": self.steps, "updates": self.updates, "wall_secs": self.wall_secs}
        record = head | values
        self.sinks.write(record)
        for told in self.callbacks.on_record:
            told(record)

    def _wants_record(self, steps_before: int, episodes_before: int) -> bool:
        """Whether one is due, by episodes if that was asked for."""
        wanted = self.config.metrics
        if wanted.every_episodes is not None:
            return _crossed(episodes_before, self.window.total, wanted.every_episodes)
        return _crossed(steps_before, self.steps, wanted.every_steps)

    def _wants_evaluation(self, before: int) -> bool:
        if self.config.eval.episodes == 0 or self.pending:
            return False
        return self._looks_are_due(before) or self._candidate()

    def _wants_film_alone(self, before: int) -> bool:
        """Whether a film is due where nothing is evaluated; else it comes with the evaluation."""
        config = self.config
        alone = config.record.episodes > 0 and config.eval.episodes == 0
        return alone and self._looks_are_due(before)

    def _looks_are_due(self, before: int) -> bool:
        every = self.config.eval.every_steps
        return every is not None and _crossed(before, self.steps, every)

    def _candidate(self) -> bool:
        """Whether the training score has reached stop_at and no evaluation denied it lately."""
        if not self._training_score_reached():
            return False
        if self.reached_at is None:
            self.reached_at = {"steps": self.steps, "wall_secs": self.wall_secs}
        wait = self.unconfirmed_at * (1 + RETRY_SHARE)
        return self.steps > wait

    def _training_score_reached(self) -> bool:
        stop_at, window = self.config.stop_at, self.window
        if stop_at is None or not window.full:
            return False
        return window.mean(self.config.eval.score) >= stop_at

    def _see_whether_over(self) -> None:
        config = self.config
        if config.eval.episodes == 0 and self._training_score_reached():
            self.reached_at = {"steps": self.steps, "wall_secs": self.wall_secs}
            self.stop("solved", f"training score reached {config.stop_at}")
        elif self.steps >= config.total_steps:
            self.stop("finished", f"{config.total_steps} steps reached")
        elif self._time_is_up():
            self.stop("finished", f"time limit of {config.time_limit_secs:g} s reached")

    def _time_is_up(self) -> bool:
        limit = self.config.time_limit_secs
        return limit is not None and self.wall_secs >= limit

    def no_time_to_evaluate(self) -> bool:
        """Whether the time limit, which is one of the command, has passed."""
        return self._time_is_up() and not self.config.eval.after_limit

    def awaits_scores(self) -> bool:
        """Whether the run, which is over, still waits for evaluations of what was saved."""
        if self.outcome is None or self.outcome.state in ("interrupted", "solved"):
            return False
        return bool(self.pending) and not self.no_time_to_evaluate()

    def awaits_film(self) -> bool:
        """Whether the run, which is over, still waits for a film of what was saved."""
        if self.outcome is None or self.outcome.state == "interrupted":
            return False
        return self.films.open and not self.no_time_to_evaluate()

    def tell_stage(self, stage: Stage | None) -> None:
        """Say what is done now; None: it trains."""
        self._stage = stage
        self.callbacks.tell_stage(stage)

    def _tell_steps(self) -> bool:
        """Say how many steps were made, now and then; whether it was time for that."""
        moment = time.monotonic()
        if moment - self._told_steps < TELL_SECS:
            return False
        self._told_steps = moment
        if self.callbacks.on_steps is not None:
            self.callbacks.on_steps(self.steps)
        return True

    def tell_evaluation(self, episodes: int) -> None:
        """Say that an evaluation, for which training waits, has come so far."""
        what = "final evaluation" if self.outcome is not None else "evaluation"
        count = self.config.eval.episodes
        of = "episodes" if count > 1 else "episode"
        self.tell_stage(Stage(what, episodes, count, of, brief=self.outcome is None))

    def stop(self, state: OutcomeState, reason: str) -> None:
        """End the session. The first reason given stays, unless the last evaluation comes after it:
        solved outranks finished, and so does an interrupt that leaves an evaluation to be done."""
        late = state == "solved" or (state == "interrupted" and bool(self.pending))
        if self.outcome is None or (late and self.outcome.state == "finished"):
            self.outcome = Outcome(state, reason)

    def evaluations_due(self) -> list[int]:
        """Checkpoints, by their steps, that wait for their evaluation."""
        return list(self.pending)

    def on_evaluation(self, steps: int, summary: Record) -> None:
        """Note the score of the checkpoint at ``steps``."""
        self.leave_out_evaluation(steps)
        key = f"{self.config.eval.score}_mean"
        mean = summary[key]
        best = self.store.best_score()
        # All episodes outrank a higher mean of the first ones: only what did well played on.
        whole = summary["episodes"] >= self.config.eval.episodes
        rank = (best["episodes"] >= self.config.eval.episodes, best[key]) if best else None
        if math.isfinite(mean) and (rank is None or (whole, mean) >= rank):
            score = {k: v for k, v in summary.items() if k not in _LONG}
            self.store.mark_best(steps, score | {"score": self.config.eval.score})
        values = {f"eval/{name}": summary[name] for name in _TOLD}
        values |= {f"eval/info_{key}_mean": x for key, x in summary.get("info_means", {}).items()}
        self._emit(self._place_of("eval", steps) | values)
        if whole and self._confirms(mean):
            self.stop("solved", f"evaluation reached {mean:.1f}, at least {self.config.stop_at:g}")
        else:
            self.unconfirmed_at = self.steps
        if self.callbacks.on_evaluation is not None:
            try:
                self.callbacks.on_evaluation({"steps": steps} | summary)
            except StopRun as request:
                self.stop("stopped", str(request) or "a callback asked for it")

    def leave_out_evaluation(self, steps: int) -> None:
        """Do not wait for the score of the checkpoint at ``steps`` any more."""
        self.pending.remove(steps)
        self.evaluated_at = steps
        self.store.release(steps)

    def on_film(self, steps: int, film: Film | None) -> None:
        """Note the film of the checkpoint at ``steps``; None: it could not be made."""
        if not self.films.done(steps) or film is None:
            return
        self.films.made += 1
        values = {
            "record/return_mean": sum(film.returns) / len(film.returns),
            "record/length_mean": sum(film.lengths) / len(film.lengths),
            "record/films": self.films.made,
            "record/skipped": self.films.skipped,
        }
        self._emit(self._place_of("record", steps) | values)

    def _place_of(self, about: str, steps: int) -> Record:
        """Where in the run the checkpoint of ``steps`` was saved, whenever it was looked at."""
        place: Record = {f"{about}/steps": steps}
        try:
            saved = self.store.load(steps, parts=["session"]).parts["session"]
        except UserError:  # somebody has removed it meanwhile
            return place
        return place | {f"{about}/saved_wall_secs": saved.data["wall_secs"]}

    def _confirms(self, mean: float) -> bool:
        """Whether an evaluation's score ends the run.

        One evaluation alone can be lucky (an untrained CartPole policy may score 440 when it takes
        its most likely action), so the training score must have been there too, unless regular
        evaluations were asked for.
        """
        config = self.config
        if config.stop_at is None or mean < config.stop_at:
            return False
        return self.reached_at is not None or config.eval.every_steps is not None

    def _save(self, parts: Parts, *, look: bool = False) -> None:
        """A checkpoint; ``look``: to be evaluated and filmed, as far as that is wanted."""
        if look:
            self._await_look()
        if self._sinks is not None:
            self._sinks.flush()
        if self._inside is not None:
            self._inside.flush()
        beside = self._beside() if self._beside is not None else {}
        self.store.save(self.steps, parts() | beside | {"session": self._state()})
        self.saved_at, self._saved_moment = self.steps, time.monotonic()

    def _overdue(self) -> bool:
        """Whether too much would be lost if this process ended now."""
        every = self.config.checkpoint.every_secs
        return every is not None and time.monotonic() - self._saved_moment >= every

    def _await_look(self) -> None:
        """Have the newest checkpoint evaluated and filmed, unless it is or waits."""
        config = self.config
        known = (self.evaluated_at, *self.pending)
        if config.eval.episodes > 0 and self.steps not in known:
            self.pending.append(self.steps)
            self.store.protect(self.steps)
        if config.record.episodes > 0 and self.steps != self.films.newest:
            self.films.want(self.steps)

    def finish(self, parts: Parts) -> None:
        """The last record and the last checkpoint, to be evaluated if it was not yet."""
        if self.steps > self._last_log[0]:
            self.write(self._told)
        self._note(parts, end=True)
        wanted = self._finished_normally() and not self.no_time_to_evaluate()
        if self.saved_at != self.steps:
            self._save(parts, look=wanted)
        elif wanted:
            self._await_look()

    def _finished_normally(self) -> bool:
        return self.outcome is not None and self.outcome.state in ("finished", "stopped")

    def close(self) -> None:
        """Flush and close the sinks."""
        if self._inside is not None:
            self._inside.close()
            self._inside = None
        if self._sinks is not None:
            self._sinks.flush()
            self._sinks.close()
            self._sinks = None

    def _state(self) -> State:
        position = self.run.metrics_path.stat().st_size if self.run.metrics_path.exists() else 0
        data = {
            "wall_secs": self.wall_secs,
            "window": self.window.state_dict(),
            "metrics_position": position,
            "pending": self.pending,
            "unconfirmed_at": self.unconfirmed_at,
            "reached_at": self.reached_at,
            "films": self.films.made,
            "film_due": self.films.due,
        }
        return State({}, data)

    def load_state(self, saved: State, *, steps: int, updates: int) -> None:
        """Go on from a checkpoint: counters back, and metrics cut to where it was made.

        It may have been the last one, with nothing but its evaluation left to do.
        """
        data = saved.data
        self.steps, self.updates, self.saved_at = steps, updates, steps
        self._learned_at = self._purged_at = steps
        self.wall_before = data["wall_secs"]
        self.window.load_state_dict(data["window"])
        there = self.store.steps_available()
        self.pending = [steps for steps in data["pending"] if steps in there]
        self.unconfirmed_at = data["unconfirmed_at"]
        self.reached_at = data["reached_at"]
        self.films.made = data.get("films", 0)
        if (due := data.get("film_due")) in there:
            if self.run.film_path(due).exists():
                self.films.made, self.films.newest = self.films.made + 1, due
            else:
                self.films.want(due)
        self._last_log = (steps, time.monotonic())
        for waiting in self.pending:
            self.store.protect(waiting)
        if self.run.metrics_path.exists():
            cut(self.run.metrics_path, data["metrics_position"])
        self._see_whether_over()


_LONG = ("returns", "lengths", "info_means")
_TOLD = (
    *("return_mean", "return_std", "return_min", "return_max"),
    *("length_mean", "length_std", "episodes"),
)
"""Of an evaluation's summary, in its record."""


def _crossed(before: int, after: int, every: int) -> bool:
    """Whether a multiple of ``every`` lies in (before, after]."""
    return before // every != after // every
