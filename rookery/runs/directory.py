"""The run directory: where everything of one run is, who trains it, and how it ended.

The driver of a run::

    run = RunDirectory.create(None, name="ppo-CartPole-v1")      # or RunDirectory.open(path)
    with run.lock():                                             # one trainer at a time
        run.write_config(yaml_text)
        run.write_meta({"seed": 0})
        run.write_status("running", steps=0)
        ...
        run.write_status("finished", reason="all steps done", steps=100_000)
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import re
import secrets
import shlex
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from rookery.core.errors import UserError
from rookery.runs.atomic import TEMP_PREFIX, write_atomic, writing
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import directory_name, steps_of
from rookery.runs.find import is_run, no_such_run, runs_inside
from rookery.runs.slurm_job import read_slurm_job

_log = logging.getLogger(__name__)

RunState = Literal["running", "finished", "solved", "stopped", "interrupted", "failed"]
"""``finished``: all steps or the time limit; ``stopped``: a callback asked for it."""

_GIT_TIMEOUT_SECS = 3.0
_PACKAGES = ("torch", "numpy", "gymnasium")
_DATE_AND_ID = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run is doing, as its driver last wrote it."""

    state: RunState
    reason: str | None = None
    steps: int = 0
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    time: float = field(default_factory=time.time)
    """When it was written, in seconds of the epoch."""

    @property
    def alive(self) -> bool:
        """Whether it says running and, as far as this host can tell, its process still is."""
        if self.state != "running":
            return False
        return self.host != socket.gethostname() or _process_exists(self.pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of ``rookery runs``."""

    path: Path
    name: str
    state: str
    """A :data:`RunState`, ``killed`` (says running but its process is gone) or ``new``."""
    steps: int
    best_score: dict[str, Any] | None
    last_activity: float
    """Seconds of the epoch."""
    tags: tuple[str, ...] = ()
    films: int = 0
    """Those that it made of its saved policies."""


class RunDirectory:
    """The files of one run by name; see the module's docstring for the driver's use of it."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: Path | None, *, name: str, root: Path = Path("runs")) -> RunDirectory:
        """Make the directory of a new run: ``path``, or a name with date and id under ``root``."""
        if path is None:
            return cls(_make_named(Path(root), name))
        path = Path(path)
        with writing(path):
            used = path.exists() and (not path.is_dir() or any(path.iterdir()))
            if used and not _waits_for_its_job(path):
                raise UserError(
                    f"{path} is already used; choose another --run or `rookery resume {path}`"
                    if is_run(path)
                    else f"{path} is already used: it is not an empty directory; choose another "
                    "--run"
                )
            path.mkdir(parents=True, exist_ok=True)
            (path / "logs").mkdir(exist_ok=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The existing run in ``path``."""
        path = Path(path)
        if not is_run(path):
            raise no_such_run(path)
        return cls(path)

    @property
    def config_path(self) -> Path:
        """The fully resolved configuration; training with it repeats the run."""
        return self.path / "config.yaml"

    @property
    def meta_path(self) -> Path:
        """Versions, host, command line and seeds of every session."""
        return self.path / "meta.json"

    @property
    def status_path(self) -> Path:
        """How the run is doing."""
        return self.path / "status.json"

    @property
    def metrics_path(self) -> Path:
        """The canonical stream of records."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard_dir(self) -> Path:
        """Where TensorBoard's event files are: here, so that TensorBoard calls the run by its name.

        Earlier versions had a directory for them; a run that has one keeps it.
        """
        earlier = self.path / "tensorboard"
        return earlier if earlier.is_dir() else self.path

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def replay(self) -> Path:
        """Snapshots of the replay."""
        return self.path / "replay"

    @property
    def history(self) -> Path:
        """Weights as they were along the training."""
        return self.path / "history"

    @property
    def videos(self) -> Path:
        """Recorded episodes."""
        return self.path / "videos"

    def film_path(self, steps: int) -> Path:
        """The film of the checkpoint of ``steps`` that the run itself made."""
        return self.videos / f"{directory_name(steps)}.mp4"

    def films(self) -> list[Path]:
        """Those films that are there, the earliest first."""
        found = self.videos.glob("*.mp4")
        return sorted(path for path in found if steps_of(path.stem) is not None)

    @property
    def plots(self) -> Path:
        """Figures of the run."""
        return self.path / "plots"

    @property
    def logs(self) -> Path:
        """One log for every replica of every role."""
        return self.path / "logs"

    def log_path(self, role: str, replica: int) -> Path:
        """The log of one process of the run."""
        return self.logs / f"{role}-{replica}.log"

    def write_ranks(self, lines: list[str]) -> None:
        """Write ``logs/ranks.txt``: which process of an MPI job was which rank."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self._write(self.logs / "ranks.txt", "\n".join(lines) + "\n")

    def how_to_go_on(self) -> str:
        """The command that goes on with this run, which has ended before its time."""
        saved = CheckpointStore(self.checkpoints).steps_available()
        if saved:
            command = f"`rookery resume {shlex.quote(str(self.path))}`"
            return f"{command} goes on from its checkpoint at step {saved[-1]:,}"
        command = f"`rookery train --config {shlex.quote(str(self.config_path))}`"
        return f"it has no checkpoint yet: {command} begins it again"

    def write_failure(self, error: BaseException, who: str = "failure") -> Path:
        """Write the whole traceback of ``error`` to ``logs/WHO.log``; where that is."""
        self.logs.mkdir(parents=True, exist_ok=True)
        path = self.logs / f"{who}.log"
        self._write(path, "".join(traceback.format_exception(error)))
        return path

    def write_config(self, text: str) -> None:
        """Write ``config.yaml``."""
        self._write(self.config_path, text)

    def write_meta(self, extra: dict[str, Any]) -> None:
        """Add a session (one train or resume) with ``extra``, such as seeds, to ``meta.json``."""
        sessions = [*self.read_meta(), _session() | extra]
        self._write(self.meta_path, json.dumps({"sessions": sessions}, indent=2) + "\n")

    def read_meta(self) -> list[dict[str, Any]]:
        """The sessions of the run, the oldest first."""
        sessions = (_read_json(self.meta_path) or {}).get("sessions")
        return sessions if isinstance(sessions, list) else []

    def write_status(self, state: RunState, *, reason: str | None = None, steps: int = 0) -> None:
        """Write ``status.json`` for this process."""
        status = RunStatus(state=state, reason=reason, steps=steps)
        self._write(self.status_path, json.dumps(asdict(status)) + "\n")

    def read_status(self) -> RunStatus | None:
        """What :meth:`write_status` last wrote; None if it never did."""
        data = _read_json(self.status_path)
        if data is None or data.get("state") not in get_args(RunState):
            return None
        known = {field.name for field in fields(RunStatus)}
        return RunStatus(**{key: value for key, value in data.items() if key in known})

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; the system lets go of it however the process ends."""
        with writing(self.path / ".lock"):
            file = open(self.path / ".lock", "a+b", buffering=0)  # noqa: SIM115  closed below
        with file:
            self._acquire(file.fileno())
            with writing(self.path / ".lock"):
                file.truncate(0)
                file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
                self._remove_leftovers()
            try:
                yield
            finally:
                file.truncate(0)

    def _acquire(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode(errors="replace").split()
            pid, host = holder if len(holder) == 2 else ("unknown", "this host")
            raise UserError(
                f"{self.path} is in use by process {pid} on {host}; "
                "wait for it, stop it, or choose another --run"
            ) from None
        except OSError as error:
            _log.warning(
                "%s cannot be locked (%s); make sure that only one process trains it",
                self.path,
                error.strerror,
            )

    def _remove_leftovers(self) -> None:
        for path in self.path.glob(f"{TEMP_PREFIX}*"):
            path.unlink(missing_ok=True)

    def _write(self, path: Path, text: str) -> None:
        with writing(path):
            write_atomic(path, text.encode())


def list_runs(root: Path) -> list[RunSummary]:
    """The runs under ``root``, alone or in a group of seeds, the last active first."""
    root = Path(root)
    try:
        paths = [run for path in root.iterdir() for run in _one_or_several(path)]
    except FileNotFoundError:
        raise UserError(f"{root} does not exist; name the directory of your runs") from None
    except OSError as error:
        raise UserError(
            f"cannot list {root}: {error.strerror}; name the directory of your runs"
        ) from error
    summaries = [summary for path in paths if (summary := _readable(path)) is not None]
    return sorted(summaries, key=lambda run: run.last_activity, reverse=True)


def _readable(path: Path) -> RunSummary | None:
    try:
        return _summary(path)
    except OSError as error:
        _log.warning("%s cannot be read: %s", path, error.strerror)
        return None


def _one_or_several(path: Path) -> list[Path]:
    return [path] if is_run(path) else runs_inside(path)


def _summary(path: Path) -> RunSummary:
    run = RunDirectory(path)
    status = run.read_status()
    store = CheckpointStore(run.checkpoints)
    sessions = run.read_meta()
    last = sessions[-1] if sessions else {}
    return RunSummary(
        path=path,
        name=str(last.get("recipe") or _DATE_AND_ID.sub("", path.name)),
        state=_state_of(status),
        steps=max([status.steps if status else 0, *store.steps_available()]),
        best_score=store.best_score(),
        last_activity=_last_activity(run),
        tags=tuple(map(str, last.get("tags", ()))),
        films=len(run.films()),
    )


def _state_of(status: RunStatus | None) -> str:
    if status is None:
        return "new"
    return "killed" if status.state == "running" and not status.alive else status.state


def _last_activity(run: RunDirectory) -> float:
    times = [0.0]
    for path in (run.path, run.status_path, run.metrics_path, run.checkpoints):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _waits_for_its_job(path: Path) -> bool:
    """Whether ``path`` was made for a Slurm job, in which nothing was saved yet."""
    job = read_slurm_job(path)
    return job is not None and not CheckpointStore(path / "checkpoints").steps_available()


def new_name(name: str, root: Path = Path("runs")) -> Path:
    """Where a new run of this ``name`` may be: with date and id under ``root``."""
    stem = re.sub(r"[^\w.+=-]+", "-", name).strip("-.") or "run"
    date = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return root / f"{stem}-{date}-{secrets.token_hex(2)}"


def _make_named(root: Path, name: str) -> Path:
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        while True:
            path = new_name(name, root)
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                (path / "logs").mkdir()
                return path


def package_versions() -> dict[str, str | None]:
    """What must be the same on all machines of a run."""
    python = {"python": platform.python_version()}
    return python | {name: _version_of(name) for name in _PACKAGES}


def _session() -> dict[str, Any]:
    return {
        "started": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "rookery": _version_of("rookery") or "0+unknown",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "num_cpus": os.cpu_count(),
        "versions": {name: _version_of(name) for name in _PACKAGES},
        "git": _git_state(),
        "command": shlex.join(sys.argv),
        "pid": os.getpid(),
    }


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    """Commit of the repository around the working directory, None if there is none."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *args],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_SECS,
            stdin=subprocess.DEVNULL,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
