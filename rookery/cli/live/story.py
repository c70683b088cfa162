"""What a run is and what its records have told so far: the numbers behind the live view."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.core.interval import half_width
from rookery.runs.config import RunConfig
from rookery.runs.stage import START, Stage

Record = dict[str, Any]

MOST_POINTS = 1024
"""A curve of more is thinned: no terminal has room for them."""
_RECENT = 8
"""Records by which the remaining time is estimated."""
_WAIT_SUFFIX = "_wait_share"


@dataclass(frozen=True, slots=True)
class Score:
    """One evaluation: mean, half of its 95 % interval (None: unknown) and when."""

    steps: int
    mean: float
    half: float | None
    episodes: int


class Story:
    """Hears records and answers what a view asks.

    ::

        story.hear(record, moment)      # moment: time.monotonic() when it came
        story.share(now), story.remaining_secs(now), story.points ...
    """

    def __init__(
        self, config: RunConfig, path: Path, moment: float, *, steps: int = 0, secs: float = 0.0
    ) -> None:
        self.config = config
        self.path = path
        self.begun_steps, self.begun_secs = steps, secs
        self.steps, self.secs, self.moment = steps, secs, moment
        self.state = "running"
        self.stage: Stage | None = START
        """What it does while it is running and not training."""
        self.ahead = (steps, moment)
        """Steps made by some moment, also between records."""
        self.restarts = 0
        self.recorded = False
        """Whether this session has written a record."""
        self.last: Record = {}
        self.points: list[tuple[float, float]] = []
        self.scores: list[Score] = []
        self.films = 0
        """Films of saved policies."""
        self._recent: deque[tuple[float, int]] = deque([(secs, steps)], maxlen=_RECENT)

    def recall(self, records: Iterable[Record]) -> None:
        """Records of earlier sessions, up to where this one begins."""
        for record in records:
            if record.get("steps", math.inf) <= self.begun_steps:
                self._note(record)

    def hear(self, record: Record, moment: float) -> None:
        """Take one record as it is written."""
        if record["steps"] < self.steps:
            self._rewind(record["steps"])
        self.steps, self.secs, self.moment = record["steps"], record["wall_secs"], moment
        if self.steps > self.ahead[0]:
            self.ahead = (self.steps, moment)
        self.recorded = True
        self._recent.append((self.secs, self.steps))
        restarts = self.number_in(record, "fleet/restarts")
        self.restarts = max(self.restarts, int(restarts or 0))
        self._note(record)

    def enter(self, stage: Stage | None, moment: float) -> None:
        """It does something else now, or is further with it."""
        before, self.stage = self.stage, stage
        if before is not None and before.is_start and not (stage is not None and stage.is_start):
            self.moment = moment  # training time begins
            self.ahead = (self.steps, moment)

    def end(self, state: str, *, steps: int, secs: float, restarts: int) -> None:
        """The session is over."""
        self.state, self.steps, self.secs = state, steps, secs
        self.ahead = (steps, self.moment)
        self.restarts = max(self.restarts, restarts)

    def _note(self, record: Record) -> None:
        if "eval/steps" in record:
            self._note_score(record)
            return
        if "record/films" in record:
            self.films = int(record["record/films"])
            return
        self.last = record
        value = self.number_in(record, f"rollout/{self.score_name}_mean")
        if value is not None:
            self.points.append((float(record["steps"]), value))
        if len(self.points) > MOST_POINTS:
            self.points = self.points[:-1:2] + self.points[-1:]

    def _note_score(self, record: Record) -> None:
        mean = self.number_in(record, f"eval/{self.score_name}_mean")
        if mean is None:
            return
        episodes = int(self.number_in(record, "eval/episodes") or 0)
        deviation = self.number_in(record, f"eval/{self.score_name}_std")
        half = None if deviation is None else half_width(deviation, episodes)
        score = Score(int(record["eval/steps"]), mean, half, episodes)
        self.scores = [known for known in self.scores if known.steps != score.steps]
        self.scores.append(score)

    def _rewind(self, steps: int) -> None:
        """A killed learner went back to its checkpoint: what came after it is made again."""
        self.points = [point for point in self.points if point[0] <= steps]
        self.scores = [score for score in self.scores if score.steps <= steps]
        self._recent.clear()
        self.ahead = (steps, self.moment)

    @staticmethod
    def number_in(record: Record, key: str) -> float | None:
        """A finite number of ``record``, else None."""
        value = record.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
        return None

    def value(self, key: str) -> float | None:
        """A finite number of the last training record, else None."""
        return self.number_in(self.last, key)

    @property
    def score_name(self) -> str:
        """What the run is judged by: return or length."""
        return self.config.eval.score

    @property
    def best(self) -> Score | None:
        """The best evaluation so far."""
        return max(self.scores, key=lambda score: score.mean, default=None)

    @property
    def waiting(self) -> dict[str, float]:
        """Share of its time that each role waits."""
        shares = {}
        for key in self.last:
            value = self.value(key)
            if key.startswith("fleet/") and key.endswith(_WAIT_SUFFIX) and value is not None:
                shares[key.removeprefix("fleet/").removesuffix(_WAIT_SUFFIX)] = value
        return shares

    def elapsed_secs(self, now: float) -> float:
        """Training time over all sessions."""
        return self.secs if self.state != "running" else self.secs + max(now - self.moment, 0.0)

    @property
    def mean_rate(self) -> float | None:
        """Steps a second over this session, to its last record or, before the first, to now."""
        steps, secs = self.steps, self.secs - self.begun_secs
        if not self.recorded:
            steps, secs = self.ahead[0], self.ahead[1] - self.moment
        return (steps - self.begun_steps) / secs if secs > 0 else None

    @property
    def steps_now(self) -> int:
        """Steps made, also since the last record."""
        return max(self.steps, self.ahead[0])

    @property
    def first_record_at(self) -> str:
        """Where this session writes its first record."""
        wanted = self.config.metrics
        if wanted.every_episodes is not None:
            return f"within {wanted.every_episodes:,} episodes"
        return f"at {(self.begun_steps // wanted.every_steps + 1) * wanted.every_steps:,} steps"

    def _recent_rate(self) -> float | None:
        if len(self._recent) < 2:
            return self.mean_rate
        (secs, steps), (last_secs, last_steps) = self._recent[0], self._recent[-1]
        return (last_steps - steps) / (last_secs - secs) if last_secs > secs else None

    def share(self, now: float) -> float:
        """How much of the run is done: by steps or, until it has ended, by its time limit."""
        done = self.steps_now / self.config.total_steps
        limit = self.config.time_limit_secs
        if limit is not None and self.state == "running":
            done = max(done, self.elapsed_secs(now) / limit)
        return min(max(done, 0.0), 1.0)

    def remaining_secs(self, now: float) -> float | None:
        """Until the steps are done or the time is up, whichever comes first; None: unknown."""
        ends = []
        rate = self._recent_rate()
        if rate:
            secs = (self.config.total_steps - self.steps) / rate
            ends.append(secs - max(now - self.moment, 0.0))
        limit = self.config.time_limit_secs
        if limit is not None:
            ends.append(limit - self.elapsed_secs(now))
        return max(min(ends), 0.0) if ends else None
