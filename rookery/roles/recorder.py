"""The recorder: films saved policies while the run trains, into ``videos/`` of the run.

A film shows the first episodes that the evaluator plays, so all films of a run begin alike and show
what was scored. Nothing that goes wrong with a film ends a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rookery.core.errors import UserError
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import Answerer, BaseRole
from rookery.core.seeding import seed_of
from rookery.core.spec import Arrays, ArraySpec
from rookery.runs.atomic import TEMP_PREFIX, writing
from rookery.runs.directory import RunDirectory
from rookery.runs.find import await_checkpoint


@dataclass(frozen=True, kw_only=True)
class RecordConfig:
    """Films of saved policies, made while the run trains."""

    episodes: int = 0
    """Film so many episodes of each policy that is evaluated, or, without evaluations, of one each
    eval.every_steps and of the last; 0: none."""
    length_secs: float = 60.0
    """A film is no longer than this; several episodes have equal parts of it."""
    wait_secs: float = 60.0
    """At its end the run waits so long for its last film."""

    def __post_init__(self) -> None:
        if self.episodes < 0:
            raise UserError(f"record.episodes: must not be negative, got {self.episodes}")
        if self.length_secs <= 0:
            raise UserError(f"record.length_secs: must be positive, got {self.length_secs:g}")
        if self.wait_secs < 0:
            raise UserError(f"record.wait_secs: must not be negative, got {self.wait_secs:g}")


@dataclass(frozen=True, slots=True)
class Film:
    """What a film shows: raw returns and lengths of its episodes, as far as it shows them."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]


class Recorder(BaseRole):
    """Films the saved policies that it is asked about."""

    def __init__(
        self,
        config: RecordConfig,
        requests: Answerer,
        run: RunDirectory,
        *,
        seed: int,
        warn: Callable[[str], None],
        should_stop: Callable[[], bool] = lambda: False,
        heartbeat: Heartbeat | None = None,
        late_secs: float = 0.0,
    ) -> None:
        """``seed``: of the run; ``late_secs``: how much later than at the head a checkpoint may be
        seen here."""
        self.config, self.requests, self.run = config, requests, run
        self.seed = seed_of(seed, "evaluation")
        self.warn, self.should_stop, self.late_secs = warn, should_stop, late_secs
        self.heartbeat = heartbeat or Heartbeat()
        self._warned = False

    def start(self) -> None:
        """Remove what a recorder that was killed has left half written."""
        for path in self.run.videos.glob(f"{TEMP_PREFIX}{'[0-9]' * 12}.*"):
            path.unlink(missing_ok=True)

    def ready(self) -> bool:
        """Whether a checkpoint waits for its film."""
        return self.requests.asked_about() is not None

    def wait(self, timeout_secs: float) -> None:
        """Sleep until one may."""
        with self.heartbeat.waiting():
            self.requests.wait(timeout_secs)

    def step(self) -> None:
        """Film the one that waits, unless stopped on the way."""
        steps = self.requests.asked_about()
        if steps is None or not await_checkpoint(
            self.run.path, steps, self.late_secs, self.should_stop
        ):
            return
        film = Film((), ())
        try:
            film = self._film(steps)
            self._warned = False
        except _StoppedError:
            return
        except Exception as error:  # environments draw by code of their own
            self._warn_once(error)
        finally:
            self.heartbeat.rest()
        self.requests.answer(
            count=np.array([len(film.returns)]),
            returns=np.array(film.returns),
            lengths=np.array(film.lengths),
        )

    def answer(self) -> None:
        """Film all that wait."""
        while self.ready() and not self.should_stop():
            self.step()

    def _film(self, steps: int) -> Film:
        """The film of a checkpoint, whole under its name when this returns."""
        from rookery.play.record import RecordOrder, record  # which draws, and takes a second

        out = self.run.film_path(steps)
        with writing(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        order = RecordOrder(
            source=str(self.run.path),
            out=out,
            checkpoint=str(steps),
            num_episodes=self.config.episodes,
            length_secs=self.config.length_secs,
            seed=self.seed,
            force=True,
            on_picture=self._go_on,
        )
        with torch.random.fork_rng(devices=[]):  # nobody who takes turns with it may notice
            played = record(order)["episodes"]
        return Film(
            tuple(float("nan") if each["return"] is None else each["return"] for each in played),
            tuple(each["length"] for each in played),
        )

    def _go_on(self, num_pictures: int) -> None:
        self.heartbeat.progress(num_pictures)
        if self.should_stop():
            raise _StoppedError

    def _warn_once(self, error: Exception) -> None:
        """Say why there is no film; of further ones only when one was made meanwhile."""
        if not self._warned:
            self._warned = True
            self.warn(f"no film of the saved policy: {error}; training goes on")


class _StoppedError(Exception):
    """The run is over before the film."""


def film_spec(episodes: int) -> dict[str, ArraySpec]:
    """What the recorder answers."""
    return {
        "count": ArraySpec((1,), np.dtype(np.int64)),
        "returns": ArraySpec((episodes,), np.dtype(np.float64)),
        "lengths": ArraySpec((episodes,), np.dtype(np.int64)),
    }


def read_film(values: Arrays) -> Film | None:
    """The film in an answer; None: there is none."""
    count = int(values["count"][0])
    if not 0 < count <= len(values["returns"]):
        return None
    returns: Any = values["returns"][:count].tolist()
    lengths: Any = values["lengths"][:count].tolist()
    return Film(tuple(returns), tuple(lengths))
