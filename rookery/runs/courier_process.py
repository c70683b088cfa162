"""The process that speaks with a tracking service: ``python -m rookery.runs.courier_process``.

It reads records as lines of JSON and tells them to a :class:`Tracker`::

    tracker.open(memo, config)             # a new run of the service, or the one in the memo again
    tracker.log(record)                    # each record, in turn
    tracker.close("finished")              # or failed, or killed when the writer just went away

The memo, ``<run>/<service>.json``, keeps the id of the service's run and the last record told, so a
resumed run goes on in the same place and does not tell twice what it repeats.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import yaml

from rookery.core.errors import UserError
from rookery.runs.atomic import write_atomic
from rookery.runs.directory import RunDirectory

_LOG = logging.getLogger(__name__)

Record = dict[str, Any]
Ending = Literal["finished", "failed", "killed"]

LAST_SECS = 30
"""How long the process may live after its writer is gone."""
MAX_WAITING = 10_000
"""Records kept while the service cannot be reached."""
RETRY_SECS = 20.0
"""A service that failed is left alone for this long."""


@dataclass(slots=True)
class Memo:
    """What a later session must know."""

    id: str = ""
    """The service's own name of the run; empty before the first session."""
    url: str = ""
    steps: int = -1
    """Steps of the last record told."""
    evaluated: bool = False
    """Whether that was of an evaluation."""

    @classmethod
    def read(cls, path: Path) -> Memo:
        """What :meth:`write` wrote; a new one if it is not there or damaged."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return cls()

    def write(self, path: Path) -> None:
        """Replace the file."""
        write_atomic(path, json.dumps(asdict(self)).encode() + b"\n", durable=False)

    def after(self, record: Record) -> tuple[int, bool]:
        """Where ``record`` stands in the order in which records are made."""
        return int(record["steps"]), "eval/steps" in record


class Tracker(Protocol):
    """One tracking service; any exception means that it cannot be reached now."""

    def open(self, run: RunDirectory, config: dict[str, Any], memo: Memo) -> str | None:
        """Begin or continue the service's run and note it in ``memo``; perhaps a warning."""
        ...

    def log(self, records: list[Record]) -> None:
        """Tell records, the oldest first."""
        ...

    def close(self, ending: Ending) -> None:
        """Tell how it ended and let go of everything."""
        ...


def make_tracker(service: str) -> Tracker:
    """The tracker called ``service``."""
    if service == "wandb":
        from rookery.runs.wandb_sink import WandbTracker

        return WandbTracker()
    from rookery.runs.mlflow_sink import MlflowTracker

    return MlflowTracker()


class Telling:
    """Tells records to a tracker, keeps them while it cannot be reached, and warns once."""

    def __init__(self, service: str, tracker: Tracker, run: RunDirectory, report: IO[str]) -> None:
        self._service, self._tracker, self._run = service, tracker, run
        self._report = report
        self._memo_path = run.path / f"{service}.json"
        self._memo = Memo.read(self._memo_path)
        self._told = (self._memo.steps, self._memo.evaluated)
        self._waiting: list[Record] = []
        self._open = False
        self._failed_at = -RETRY_SECS
        self._warned = False

    def start(self) -> None:
        """Begin or continue the service's run."""
        self._try(self._ensure_open)

    def take(self, record: Record) -> None:
        """Tell one record, unless an earlier session told it."""
        if self._memo.after(record) <= self._told:
            return
        self._waiting.append(record)
        del self._waiting[:-MAX_WAITING]
        if time.monotonic() - self._failed_at >= RETRY_SECS:
            self._try(self._tell)

    def end(self, ending: Ending) -> None:
        """Tell the rest and how it ended."""
        if self._waiting:
            self._try(self._tell)
        if self._open:
            self._try(lambda: self._tracker.close(ending))

    def _ensure_open(self) -> None:
        if self._open:
            return
        config = yaml.safe_load(self._run.config_path.read_text("utf-8"))
        warning = self._tracker.open(self._run, config, self._memo)
        self._open = True
        self._memo.write(self._memo_path)
        if warning:
            self.warn(warning, works=True)

    def _tell(self) -> None:
        self._ensure_open()
        self._tracker.log(self._waiting)
        self._memo.steps, self._memo.evaluated = self._memo.after(self._waiting[-1])
        self._memo.write(self._memo_path)
        self._waiting.clear()

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:
            self._failed_at = time.monotonic()
            _LOG.exception("%s", self._service)
            lines = str(error).strip().splitlines()
            reason = lines[0] if lines else type(error).__name__
            self.warn(f"no success ({reason})", works=False)

    def warn(self, what: str, *, works: bool) -> None:
        """Tell the user through the run, once; whether it ``works`` all the same."""
        if self._warned:
            return
        self._warned = True
        text = f"metric sink {self._service}: {what}; the run goes on"
        with contextlib.suppress(OSError):
            print(json.dumps({"warning": text, "works": works}), file=self._report, flush=True)


def main() -> int:
    """Tell what comes through standard input until it ends."""
    service, path = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    records, report = _own_pipes()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _set_title(service, Path(path))
    run = RunDirectory(Path(path))
    telling = Telling(service, make_tracker(service), run, report)
    telling.start()
    ending: Ending = "killed"
    for message in _messages(records):
        if "close" in message:
            ending = message["close"]
            break
        telling.take(message)
    # Whoever waits for the end waits less; if nobody is left, this ends a service that hangs.
    signal.alarm(LAST_SECS)
    telling.end(ending)
    return 0


def _own_pipes() -> tuple[IO[str], IO[str]]:
    """Both pipes under numbers that no process inherits; a service's prints go to the log."""
    records = os.fdopen(os.dup(0), "r", encoding="utf-8")
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return records, report


def _messages(records: IO[str]) -> Iterator[Record]:
    for line in records:
        if not line.endswith("\n"):  # torn: the writer was killed
            return
        yield json.loads(line)


def _set_title(service: str, path: Path) -> None:
    import setproctitle

    setproctitle.setproctitle(f"rookery {service}-0 {path.name}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"rookery: {error}")
