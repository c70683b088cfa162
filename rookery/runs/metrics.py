"""Metrics: flat records of numbers, and the sinks that keep them.

A record is what one report of a run says, counted in steps::

    {"steps": 20480, "updates": 10, "wall_secs": 3.2, "rollout/return_mean": 21.5}

The loop that writes them::

    episodes = EpisodeWindow()
    sink = FanOut([load_sink(name, run) for name in ("jsonl", "tensorboard")])
    for rollout in rollouts:
        episodes.add(returns, lengths, info)
        sink.write({"steps": steps, "updates": updates, **episodes.summary()})
    sink.close()
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import json
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rookery.core.errors import UserError, near_names
from rookery.runs.atomic import writing
from rookery.runs.flat_settings import flat_settings

if TYPE_CHECKING:
    from rookery.runs.directory import RunDirectory

Record = dict[str, Any]

_TAIL_BYTES = 1 << 16
_SERVICES = ("wandb", "mlflow")
"""Sinks that need a package of the same name, and the extra of that name."""
_BUILTIN = ("jsonl", "tensorboard", *_SERVICES)


@runtime_checkable
class MetricSink(Protocol):
    """Where records go: ``write`` for each report, ``flush`` at checkpoints, ``close`` at the end.

    A sink of your own is a class whose constructor takes the :class:`RunDirectory`; name it
    ``module:Class`` in the configuration.
    """

    def write(self, record: Record) -> None:
        """Take one flat record; it has ``steps``."""
        ...

    def flush(self) -> None:
        """Hand everything written so far to the system."""
        ...

    def close(self) -> None:
        """Flush and let go of files; called once."""
        ...


class JsonlSink:
    """One JSON object a line, appended; each record is in the file when ``write`` returns.

    A killed writer may leave a torn last line: :func:`read_metrics` skips it and reopening
    removes it. NaN and infinities become ``null``, which every reader of JSON understands.
    """

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _drop_torn_line(self._path)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115  closed by close()

    def write(self, record: Record) -> None:
        """Append ``record``."""
        line = json.dumps({key: _plain(key, value) for key, value in record.items()}).encode()
        start = self.position()
        try:
            with writing(self._path):
                _write_all(self._file.fileno(), line + b"\n")
        except UserError:
            with contextlib.suppress(OSError):
                self._file.truncate(start)
            raise

    def position(self) -> int:
        """The length of the file in bytes: what a checkpoint stores and :func:`cut` takes."""
        return os.fstat(self._file.fileno()).st_size

    def flush(self) -> None:
        """Make the records survive a power cut."""
        with writing(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cut(path: Path, position: int) -> None:
    """Drop what was written after ``position``: a resumed run repeats those steps."""
    with writing(path):
        if path.exists() and path.stat().st_size > position:
            os.truncate(path, position)


def read_metrics(path: Path) -> list[Record]:
    """The records of a ``metrics.jsonl``, without a torn last line."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(
            f"cannot read metrics {path}: {error.strerror}; give a run that was trained"
        ) from error
    records: list[Record] = []
    for number, line in enumerate(lines[:-1], start=1):  # after the last newline: torn or empty
        try:
            records.append(json.loads(line))
        except ValueError:
            raise UserError(f"{path}, line {number}, is not JSON; remove that line") from None
    return records


_PLACES = (
    *("steps", "updates", "wall_secs"),
    *("eval/steps", "eval/saved_wall_secs", "record/steps", "record/saved_wall_secs"),
)
"""Where a record stands in its run: TensorBoard has axes for that, and no need of curves."""
_LATER = ("eval", "record")
"""Metrics of saved policies, which are told when the run has gone on."""


class TensorBoardSink:
    """Scalars by name at their ``steps`` in a new event file in ``directory``.

    ``purge_step`` is for a resumed run: TensorBoard then hides what earlier sessions wrote at that
    step and later; give the checkpoint's steps + 1. Records are written at once and by this
    thread. Only TensorBoard's own record format is imported, never TensorFlow.
    """

    _count = itertools.count()

    def __init__(self, directory: Path, purge_step: int | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        # Readers take the files of a directory in the order of their names.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        self._path = Path(directory) / f"{name}.{os.getpid()}.{next(self._count)}"
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "wb")  # noqa: SIM115  closed by close()
        self._writer = RecordWriter(self._file)
        self._put(file_version="brain.Event:2", step=purge_step)
        if purge_step is not None:
            self._put(session_log=SessionLog(status=SessionLog.START), step=purge_step)

    def write(self, record: Record) -> None:
        """Write the numbers of ``record``, those of a saved policy where it was saved; text and
        missing values are left out."""
        summary = self._summary()
        for key, value in record.items():
            number = scalar(key, value)
            if key not in _PLACES and isinstance(number, int | float):
                summary.value.add(tag=key, simple_value=float(number))
        step, age_secs = _place(record)
        self._put(age_secs, summary=summary, step=step)

    def write_layout(self) -> None:
        """Lay out the page of custom scalars: what a run is judged by, over steps or time."""
        from rookery.runs.tensorboard_layout import layout_summary

        self._put(summary=layout_summary(), step=0)

    def write_text(self, tag: str, text: str) -> None:
        """Show ``text`` on TensorBoard's page of texts."""
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._put(summary=text_pb(tag, text), step=0)

    def write_hparams(self, settings: dict[str, Any], run: str) -> None:
        """Show ``settings`` in TensorBoard's table of runs, beside the last value of each curve."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        values = {
            key: value if isinstance(value, bool | int | float | str) else str(value)
            for key, value in settings.items()
        }
        self._put(summary=hparams_pb(values, trial_id=run), step=0)

    def flush(self) -> None:
        """Nothing waits: every record was handed to the system by ``write``."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _put(self, age_secs: float = 0.0, **content: Any) -> None:
        event = self._event(wall_time=time.time() - age_secs, **content)
        with writing(self._path):
            self._writer.write(event.SerializeToString())
            self._writer.flush()


def _place(record: Record) -> tuple[int, float]:
    """The steps at which ``record`` belongs, and how long ago that was, in seconds."""
    about = next((f"{about}/" for about in _LATER if f"{about}/steps" in record), "")
    saved = record.get(f"{about}saved_wall_secs") if about else None
    age = 0.0 if saved is None else float(record["wall_secs"]) - float(saved)
    return int(record[f"{about}steps"]), max(age, 0.0)


class MemorySink:
    """Keeps the records in a list, for tests and notebooks."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        """Keep a copy of ``record``."""
        self.records.append(dict(record))

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to let go of; the records stay."""


class FanOut:
    """Several sinks as one."""

    def __init__(self, sinks: Iterable[MetricSink]) -> None:
        self.sinks = list(sinks)

    def write(self, record: Record) -> None:
        """Write ``record`` to every sink."""
        for sink in self.sinks:
            sink.write(record)

    def flush(self) -> None:
        """Flush every sink."""
        for sink in self.sinks:
            sink.flush()

    def close(self) -> None:
        """Close every sink, also after one of them failed; raises the first failure."""
        with contextlib.ExitStack() as stack:
            for sink in reversed(self.sinks):
                stack.callback(sink.close)


def check_sink_name(spec: str) -> None:
    """Refuse what is neither the name of a built-in sink nor ``module:Class``."""
    module_name, _, class_name = spec.partition(":")
    if spec not in _BUILTIN and not (module_name and class_name):
        hint = near_names(spec, _BUILTIN) or f"; use {', '.join(_BUILTIN)} or module:Class"
        raise UserError(f"unknown metric sink '{spec}'{hint}")


def check_sink_there(spec: str) -> None:
    """Refuse a sink whose package is not installed."""
    if spec in _SERVICES:
        found = importlib.util.find_spec(spec)
        # A directory of that name, which W&B itself leaves behind, has no origin.
        if found is None or found.origin is None:
            raise UserError(
                f"metric sink '{spec}' needs the package {spec}; "
                f'`pip install "rookery[{spec}]"` brings it'
            )


def load_sink(spec: str, run: RunDirectory, *, purge_step: int | None = None) -> MetricSink:
    """The sink called ``spec`` for ``run``: a built-in name, or ``module:Class`` of your own."""
    builtin: dict[str, Callable[[], MetricSink]] = {
        "jsonl": lambda: JsonlSink(run.metrics_path),
        "tensorboard": lambda: _tensorboard(run, purge_step),
    }
    check_sink_name(spec)
    check_sink_there(spec)
    if spec in builtin:
        return builtin[spec]()
    if spec in _SERVICES:
        from rookery.runs.courier import Courier

        return Courier(spec, run)
    module_name, _, class_name = spec.partition(":")
    return _own_sink(spec, module_name, class_name, run)


def _tensorboard(run: RunDirectory, purge_step: int | None) -> TensorBoardSink:
    """TensorBoard's sink, which has the run's settings as a text and in the table of runs."""
    sink = TensorBoardSink(run.tensorboard_dir, purge_step)
    if purge_step is None and run.config_path.exists():
        from rookery.recipes.catalog import parse_yaml

        text = run.config_path.read_text("utf-8")
        sink.write_text("config", "\n".join(f"    {line}" for line in text.splitlines()))
        settings = flat_settings(parse_yaml(text, str(run.config_path)))
        sink.write_hparams(settings, str(run.path))
        sink.write_layout()
    return sink


def _own_sink(spec: str, module_name: str, class_name: str, run: RunDirectory) -> MetricSink:
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(
            f"cannot import the module of metric sink '{spec}': {error}; "
            "install it or put its directory on PYTHONPATH"
        ) from error
    if not hasattr(module, class_name):
        hint = near_names(class_name, vars(module)) or "; check the name"
        raise UserError(f"module {module_name} of metric sink '{spec}' has no {class_name}{hint}")
    sink = getattr(module, class_name)(run)
    if not isinstance(sink, MetricSink):
        raise UserError(f"metric sink '{spec}' needs the methods write, flush and close")
    return sink


_AVERAGED = ("loss", "policy_loss", "value_loss", "value_mean")
"""Of ``train/*``: what can be averaged over the updates of an episode."""

_Sums = dict[str, tuple[float, int]]
"""Sum and number of what updates told, by name."""


class EpisodeWindow:
    """The last ``size`` episodes, for the running means that training reports."""

    def __init__(self, size: int = 100) -> None:
        self._episodes: deque[tuple[float, int, dict[str, float]]] = deque(maxlen=size)
        self._total = 0
        self._learned: deque[_Sums] = deque(maxlen=size)
        """What updates told until each episode ended, and since the one before."""
        self._running: _Sums = {}
        """The same since the last that ended."""

    @property
    def total(self) -> int:
        """Episodes that have ended in all."""
        return self._total

    def add_update(self, metrics: Mapping[str, float]) -> None:
        """Take what an update told, for ``window/*``; before the episodes that came with it."""
        for name in _AVERAGED:
            if (value := metrics.get(f"train/{name}")) is not None:
                total, count = self._running.get(name, (0.0, 0))
                self._running[name] = total + value, count + 1

    def add(
        self,
        returns: npt.ArrayLike,
        lengths: npt.ArrayLike,
        info: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """Take episodes that ended: their returns, lengths and, by key, values of their info."""
        values = {key: np.ravel(column).tolist() for key, column in (info or {}).items()}
        ended = zip(np.ravel(returns).tolist(), np.ravel(lengths).tolist(), strict=True)
        for index, (episode_return, length) in enumerate(ended):
            row = {key: float(column[index]) for key, column in values.items()}
            known = {key: value for key, value in row.items() if not math.isnan(value)}
            self._episodes.append((float(episode_return), int(length), known))
            self._total += 1
            self._learned.append(self._running)
            self._running = {}

    @property
    def full(self) -> bool:
        """Whether as many episodes ended as the window holds."""
        return len(self._episodes) == self._episodes.maxlen

    def mean(self, score: Literal["return", "length"]) -> float:
        """Mean return or length over the window; NaN before the first episode ended."""
        column = 0 if score == "return" else 1
        values = [float((episode[0], episode[1])[column]) for episode in self._episodes]
        return _mean(values) if values else math.nan

    def summary(self) -> Record:
        """Metrics of the window; only the total count before the first episode ended."""
        record: Record = {"rollout/episodes": self._total}
        if not self._episodes:
            return record
        returns = [episode[0] for episode in self._episodes]
        record["rollout/return_mean"] = _mean(returns)
        record["rollout/return_max"] = max(returns)
        record["rollout/return_min"] = min(returns)
        record["rollout/length_mean"] = _mean([episode[1] for episode in self._episodes])
        for key in sorted({key for episode in self._episodes for key in episode[2]}):
            values = [episode[2][key] for episode in self._episodes if key in episode[2]]
            record[f"rollout/info_{key}_mean"] = _mean(values)
        return record | self._means_of_updates()

    def _means_of_updates(self) -> Record:
        """Means over the updates that were made while the episodes of the window were played."""
        record: Record = {}
        for name in _AVERAGED:
            told = [sums[name] for sums in self._learned if name in sums]
            if told:
                totals, counts = zip(*told, strict=True)
                record[f"window/{name}"] = sum(totals) / sum(counts)
        return record

    def state_dict(self) -> dict[str, Any]:
        """The window as JSON data; floats come back exactly."""
        return {
            "total": self._total,
            "episodes": [list(episode) for episode in self._episodes],
            "learned": list(self._learned),
            "running": self._running,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the window back to what :meth:`state_dict` saw."""
        self._total = state["total"]
        self._episodes.clear()
        self._episodes.extend(
            (value, length, dict(info)) for value, length, info in state["episodes"]
        )
        self._learned.clear()
        self._learned.extend(map(_sums, state.get("learned", ())))
        self._running = _sums(state.get("running", {}))


def _sums(told: Mapping[str, Sequence[Any]]) -> _Sums:
    """Of what JSON made of them."""
    return {name: (float(total), int(count)) for name, (total, count) in told.items()}


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)  # fsum would raise on what overflows


def scalar(key: str, value: Any) -> Any:
    """``value`` as a plain Python value; NumPy and torch scalars are unwrapped."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    try:
        return value.item()
    except (AttributeError, ValueError, RuntimeError):
        raise UserError(
            f"metric '{key}' is not one number but {_describe(value)}; record its mean instead"
        ) from None


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"a {kind}" if shape is None else f"a {kind} of shape {tuple(shape)}"


def _plain(key: str, value: Any) -> Any:
    value = scalar(key, value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _drop_torn_line(path: Path) -> None:
    """Cut ``path`` after its last newline."""
    if not path.exists():
        return
    with open(path, "r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - _TAIL_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
