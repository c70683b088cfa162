"""Checkpoints: what a run saves so that it can stop at any instant and go on.

Each part of a run (weights, optimizer, replay, ...) hands over a :class:`State`: arrays and JSON
data. A checkpoint is a directory of safetensors and JSON files with a manifest of their checksums;
nothing in it can run code when it is read. The loop that saves and the code that resumes::

    store = CheckpointStore(run.checkpoints, keep=5)
    store.save(steps, {"weights": State(arrays=weights), "counters": State(data={"updates": 12})})

    checkpoint = store.load("latest", parts=["weights"])     # reads and verifies only this part
    policy.load_state_dict(checkpoint.parts["weights"].arrays)

Directory: ``<steps>/`` of 12 digits each, links ``latest`` and ``best``, ``best.json``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.core.errors import UserError, near_names
from rookery.runs.atomic import (
    TEMP_PREFIX,
    link_atomic,
    sync_directory,
    temp_name,
    write_atomic,
    writing,
)
from rookery.runs.tensorfile import (
    DamagedError as DamagedError,
)
from rookery.runs.tensorfile import (
    SavedArrays as SavedArrays,
)
from rookery.runs.tensorfile import (
    is_tensor,
    json_bytes,
    read_arrays,
    safetensors_chunks,
)

_log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
LATEST, BEST, BEST_SCORE = "latest", "best", "best.json"
_FORMAT, _VERSION = "rookery-checkpoint", 1
_DIGITS = 12
_OLD_PREFIX = ".old-"  # a checkpoint that is being replaced by one of the same number of steps
_ABANDONED_SECS = 3600.0
_LOOKS = 20  # how often `latest` is looked up anew while a running trainer prunes


@dataclass(slots=True)
class State:
    """What one part of a run saves: named arrays, and JSON data (keys are strings)."""

    arrays: SavedArrays = field(default_factory=dict)
    """NumPy arrays come back as NumPy arrays, tensors as tensors in CPU memory."""
    data: dict[str, Any] = field(default_factory=dict)
    """Comes back equal; tuples become lists, as JSON has only those."""


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint read from disk: the parts asked for, each verified."""

    path: Path
    steps: int
    parts: dict[str, State]


class CheckpointStore:
    """The checkpoints of one run, of which the newest ``keep`` stay.

    ``durable=False`` does not wait for the disk: faster, still atomic under a kill, but a power
    cut may lose the newest checkpoints (they are then recognised as damaged).
    """

    def __init__(self, directory: Path, keep: int = 5, *, durable: bool = True) -> None:
        if keep < 1:
            raise UserError(f"keep={keep} checkpoints is too few; keep at least 1")
        self.directory = Path(directory)
        self._keep = keep
        self._durable = durable
        self._protected: set[int] = set()

    # ---- saving --------------------------------------------------------------------------------

    def save(self, steps: int, parts: Mapping[str, State]) -> Path:
        """Write the checkpoint of ``steps``, point ``latest`` at it, remove what is too old.

        Raises :class:`~rookery.runs.atomic.WriteError` if the disk is full or not writable; the
        earlier checkpoints and links are then as before.
        """
        path = self._path(steps)
        with writing(path):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._clean()
            self._write(path, steps, parts)
            link_atomic(self.directory / LATEST, path.name, durable=self._durable)
        self._prune()
        return path

    def protect(self, steps: int) -> None:
        """Keep this checkpoint, which awaits evaluation, until :meth:`release`."""
        self._protected.add(steps)

    def release(self, steps: int) -> None:
        """Let the next :meth:`save` remove this checkpoint if it is old."""
        self._protected.discard(steps)

    def mark_best(self, steps: int, score: dict[str, Any]) -> None:
        """Point ``best`` at the checkpoint of ``steps`` and remember its ``score`` beside it."""
        path = self._path(steps)
        if not path.is_dir():
            raise UserError(
                f"cannot mark {path} as best: there is no such checkpoint; "
                "protect(steps) it while it awaits evaluation"
            )
        record = json.dumps({"steps": steps, "score": score}).encode()
        with writing(self.directory / BEST_SCORE):
            # The file decides and the link follows it, so a kill between the two does no harm.
            write_atomic(self.directory / BEST_SCORE, record, durable=self._durable)
            link_atomic(self.directory / BEST, path.name, durable=self._durable)

    def best_score(self) -> dict[str, Any] | None:
        """The score given to :meth:`mark_best`, or None before there is one."""
        record = self._best_record()
        return None if record is None else dict(record["score"])

    # ---- loading -------------------------------------------------------------------------------

    def load(
        self, which: str | int | Path = LATEST, parts: Iterable[str] | None = None
    ) -> Checkpoint:
        """Read and verify ``parts`` (default: all) of a checkpoint.

        ``which`` is ``'latest'``, ``'best'``, a number of steps or the path of a checkpoint. A
        damaged ``latest`` falls back to the newest valid one before it, with a warning; any other
        damaged checkpoint is an error.
        """
        names = None if parts is None else list(parts)
        if which == LATEST:
            return self._load_latest(names)
        path = which if isinstance(which, Path) else self.find(which)
        try:
            return _read_checkpoint(path, names)
        except DamagedError as problem:
            raise DamagedError(
                f"checkpoint {path} is damaged: {problem}; "
                "choose another one, such as --checkpoint latest"
            ) from problem

    def find(self, which: str | int = LATEST) -> Path:
        """The directory of the checkpoint ``which``; its files are not read.

        For ``'latest'`` it is the newest one whose files are all there in their full size.
        """
        if which == LATEST:
            return self._find_latest()
        if which == BEST:
            return self._find_best()
        try:
            steps = int(which)
        except ValueError:
            raise UserError(
                f"unknown checkpoint '{which}'; use latest, best or a number of steps "
                f"({self._describe_available()})"
            ) from None
        path = self._existing(steps)
        if path is None:
            raise UserError(
                f"no checkpoint of {steps} steps in {self.directory} "
                f"({self._describe_available()}); choose one of these or --checkpoint latest"
            )
        return path

    def steps_available(self) -> list[int]:
        """The number of steps of every checkpoint, in ascending order."""
        return sorted(self._directories())

    # ---- where things are ----------------------------------------------------------------------

    def _path(self, steps: int) -> Path:
        if not 0 <= steps < 10**_DIGITS:
            raise ValueError(f"steps={steps} does not fit the name of a checkpoint")
        return self.directory / f"{steps:0{_DIGITS}d}"

    def _existing(self, steps: int) -> Path | None:
        return self._directories().get(steps)

    def _directories(self) -> dict[int, Path]:
        """Checkpoints by steps; one set aside by an unfinished replacement counts as well."""
        found: dict[int, Path] = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for path in sorted(self.directory.iterdir()):  # '.old-1' sorts before '1', so '1' wins
                name = path.name.removeprefix(_OLD_PREFIX)
                if _is_steps(name) and path.is_dir():
                    found[int(name)] = path
        return found

    def _newest_first(self) -> list[Path]:
        """In the order of saving; after a resume from an old one that is not the order of steps."""
        latest = self._link_target(LATEST)
        ranked = []
        for steps, path in self._directories().items():
            try:
                serial = float(_read_manifest(path)["serial"])
            except DamagedError:
                serial = float("inf") if path.name == latest else -1.0
            ranked.append((serial, steps, path))
        return [path for _, _, path in sorted(ranked, reverse=True)]

    def _link_target(self, link: str) -> str | None:
        try:
            return os.readlink(self.directory / link)
        except OSError:
            return None

    def _best_record(self) -> dict[str, Any] | None:
        try:
            record = json.loads((self.directory / BEST_SCORE).read_bytes())
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or not isinstance(record.get("score"), dict):
            return None
        return record if isinstance(record.get("steps"), int) else None

    def _find_best(self) -> Path:
        record = self._best_record()
        target = self._link_target(BEST)
        if record is None and target is None:
            raise UserError(
                f"no best checkpoint in {self.directory}: none was evaluated yet; "
                "use --checkpoint latest"
            )
        path = self._existing(record["steps"]) if record else self.directory / str(target)
        if path is None or not path.is_dir():
            raise UserError(
                f"the best checkpoint of {self.directory} is missing; use --checkpoint latest"
            )
        return path

    def _describe_available(self) -> str:
        steps = self.steps_available()
        return "there are " + ", ".join(map(str, steps)) if steps else "there are none yet"

    # ---- latest, with fallback -----------------------------------------------------------------

    def _load_latest(self, names: list[str] | None) -> Checkpoint:
        for _ in range(_LOOKS):
            problems: list[str] = []
            for path in self._newest_first():
                before = _identity(path)
                try:
                    checkpoint = _read_checkpoint(path, names)
                except DamagedError as problem:
                    if _identity(path) != before:
                        break  # pruned or replaced by a running trainer while we read: look again
                    problems.append(f"checkpoint {path} is damaged: {problem}")
                    continue
                self._warn_fallback(problems, path)
                return checkpoint
            else:
                raise self._none_valid(problems)
        raise UserError(f"{self.directory} changes too fast to read; stop the run or try again")

    def _find_latest(self) -> Path:
        problems: list[str] = []
        for path in self._newest_first():
            try:
                _check_sizes(path, _read_manifest(path))
            except DamagedError as problem:
                problems.append(f"checkpoint {path} is damaged: {problem}")
                continue
            self._warn_fallback(problems, path)
            return path
        raise self._none_valid(problems)

    def _warn_fallback(self, problems: list[str], path: Path) -> None:
        for problem in problems:
            _log.warning("%s; falling back to %s", problem, path)

    def _none_valid(self, problems: list[str]) -> UserError:
        if not problems:
            return UserError(f"no checkpoint in {self.directory} yet; train first")
        return UserError(
            f"no valid checkpoint in {self.directory}: {'; '.join(problems)}; "
            "start a new run with `rookery train --config` of its config.yaml"
        )

    # ---- writing -------------------------------------------------------------------------------

    def _write(self, path: Path, steps: int, parts: Mapping[str, State]) -> None:
        temp = temp_name(path)
        os.mkdir(temp)
        try:
            with _claimed(temp):
                manifest = {
                    "format": _FORMAT,
                    "version": _VERSION,
                    "steps": steps,
                    "serial": self._next_serial(),
                    "parts": {
                        name: _write_part(temp, name, part, self._durable)
                        for name, part in parts.items()
                    },
                }
                _write_file(temp / MANIFEST, [_sealed(manifest)], self._durable)
                if self._durable:
                    sync_directory(temp)
                self._put_in_place(temp, path)
        except BaseException:
            shutil.rmtree(temp, ignore_errors=True)
            raise
        if self._durable:
            sync_directory(self.directory)

    def _next_serial(self) -> int:
        serials = [0]
        for path in self._directories().values():
            with contextlib.suppress(DamagedError):
                serials.append(int(_read_manifest(path)["serial"]))
        return max(serials) + 1

    def _put_in_place(self, temp: Path, path: Path) -> None:
        old = path.with_name(_OLD_PREFIX + path.name)
        if not path.exists():
            os.rename(temp, path)
            return
        os.rename(path, old)
        try:
            os.rename(temp, path)
        except BaseException:
            os.rename(old, path)
            raise
        self._remove(old)

    def _clean(self) -> None:
        """Remove what dead processes left half-written; finish or undo their replacements."""
        for path in self.directory.glob(f"{TEMP_PREFIX}*"):
            if _abandoned(path):
                _delete(path)
        for old in self.directory.glob(f"{_OLD_PREFIX}*"):
            path = old.with_name(old.name.removeprefix(_OLD_PREFIX))
            if path.exists():
                self._remove(old)
            else:
                os.rename(old, path)

    def _prune(self) -> None:
        record = self._best_record()
        kept = {self._path(steps).name for steps in self._protected}
        kept |= {name for link in (LATEST, BEST) if (name := self._link_target(link))}
        if record:
            kept.add(self._path(record["steps"]).name)
        for path in self._newest_first()[self._keep :]:
            # What has no manifest was not written by us, and is not ours to delete.
            if path.name not in kept and (path / MANIFEST).exists():
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Delete a checkpoint so that no half-deleted one is ever seen under its name."""
        aside = temp_name(path)
        try:
            os.rename(path, aside)
        except OSError as error:
            _log.warning("cannot remove the old checkpoint %s: %s", path, error.strerror)
            return
        _delete(aside)


# ---- one checkpoint on disk --------------------------------------------------------------------


def _read_checkpoint(path: Path, names: list[str] | None) -> Checkpoint:
    manifest = _read_manifest(path)
    listed = manifest["parts"]
    wanted = list(listed) if names is None else names
    for name in wanted:
        if name not in listed:
            raise UserError(
                f"checkpoint {path} has no part '{name}'; it has {', '.join(listed) or 'none'}"
            )
    return Checkpoint(
        path=path,
        steps=manifest["steps"],
        parts={name: _read_part(path, name, listed[name]) for name in wanted},
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint in ``path``, verified against its own checksum."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DamagedError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise DamagedError(f"{MANIFEST} cannot be read ({error.strerror})") from error
    except ValueError:
        raise DamagedError(f"{MANIFEST} is not valid JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise DamagedError(f"{MANIFEST} is not of a Rookery checkpoint")
    if manifest.get("version") != _VERSION:
        raise DamagedError(
            f"{MANIFEST} is of format version {manifest.get('version')}, "
            f"this Rookery reads version {_VERSION}"
        )
    seal = manifest.pop("sha256", None)
    if seal != hashlib.sha256(_canonical(manifest)).hexdigest():
        raise DamagedError(f"{MANIFEST} was altered (checksum differs)")
    name = path.name.removeprefix(_OLD_PREFIX)
    if _is_steps(name) and int(name) != manifest["steps"]:
        raise DamagedError(f"{MANIFEST} is of another checkpoint ({manifest['steps']} steps)")
    return manifest


def _is_steps(name: str) -> bool:
    return len(name) == _DIGITS and name.isascii() and name.isdigit()


def _sealed(manifest: dict[str, Any]) -> bytes:
    seal = hashlib.sha256(_canonical(manifest)).hexdigest()
    return json.dumps(manifest | {"sha256": seal}, indent=1).encode() + b"\n"


def _canonical(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def _write_part(directory: Path, name: str, part: State, durable: bool) -> dict[str, Any]:
    """Write the files of one part; returns its entry in the manifest."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or name == Path(MANIFEST).stem:
        raise ValueError(f"'{name}' is not a name for a part of a checkpoint")
    files: dict[str, Any] = {}
    if part.arrays:
        file = f"{name}.safetensors"
        files[file] = _write_file(directory / file, safetensors_chunks(name, part.arrays), durable)
    if part.data:
        file = f"{name}.json"
        files[file] = _write_file(directory / file, [json_bytes(name, part.data)], durable)
    numpy = sorted(key for key, array in part.arrays.items() if not is_tensor(array))
    return {"files": files, "numpy": numpy}


def _read_part(directory: Path, name: str, entry: dict[str, Any]) -> State:
    state = State()
    for file, listed in entry["files"].items():
        path = directory / file
        _verify(path, listed)
        if path.suffix == ".json":
            state.data = json.loads(path.read_bytes())
        else:
            state.arrays = read_arrays(path, set(entry["numpy"]))
    return state


def _write_file(path: Path, chunks: Iterable[bytes | memoryview], durable: bool) -> dict[str, Any]:
    """Write ``chunks``; returns the file's entry in the manifest. The sum is taken on the way."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "bytes": size}


def _verify(path: Path, listed: dict[str, Any]) -> None:
    _check_size(path, listed)
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from error
    if digest != listed["sha256"]:
        raise DamagedError(f"{path.name} was altered (checksum differs)")


def _check_size(path: Path, listed: dict[str, Any]) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        raise DamagedError(f"{path.name} is missing") from None
    if size != listed["bytes"]:
        raise DamagedError(f"{path.name} has {size} bytes instead of {listed['bytes']}")


def _check_sizes(path: Path, manifest: dict[str, Any]) -> None:
    for entry in manifest["parts"].values():
        for file, listed in entry["files"].items():
            _check_size(path / file, listed)


# ---- half-written directories ------------------------------------------------------------------


@contextlib.contextmanager
def _claimed(path: Path) -> Iterator[None]:
    """Hold a lock on a directory: whoever finds it unlocked knows that its writer is dead."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _abandoned(path: Path) -> bool:
    try:
        if not path.is_dir() or path.is_symlink():
            return time.time() - path.lstat().st_mtime > _ABANDONED_SECS
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: judge by age
        return time.time() - path.stat().st_mtime > _ABANDONED_SECS
    finally:
        os.close(descriptor)
    return True


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _identity(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


# ---- from what a user typed to a checkpoint ----------------------------------------------------


def is_run(path: Path) -> bool:
    """Whether ``path`` is a run directory: it has a config.yaml or checkpoints."""
    return (path / "config.yaml").is_file() or (path / "checkpoints").is_dir()


def runs_inside(path: Path) -> list[Path]:
    """The runs directly inside ``path``, such as the seeds of a group; ``seed-2`` before 10."""
    with contextlib.suppress(OSError):
        return sorted((entry for entry in path.iterdir() if is_run(entry)), key=_by_number)
    return []


def _by_number(path: Path) -> tuple[str, int]:
    stem, _, number = path.name.rpartition("-")
    return (stem, int(number)) if number.isdecimal() else (path.name, 0)


def no_such_run(path: Path) -> UserError:
    """The error for a ``path`` that is not a run; names runs inside it or of a similar name."""
    several = runs_inside(path)
    if several:
        return UserError(
            f"{path} is not a run directory but holds runs; give one, such as {several[0]}"
        )
    what = "is not a run directory" if path.exists() else "does not exist"
    runs: list[str] = []
    with contextlib.suppress(OSError):
        runs = sorted(entry.name for entry in path.absolute().parent.iterdir() if is_run(entry))
    hint = near_names(path.name, runs) or "; `rookery runs` lists the runs"
    return UserError(f"{path} {what}{hint}")


def find_checkpoint(path: Path, which: str | None = None) -> Path:
    """The checkpoint a user means by RUN and ``--checkpoint``.

    ``path`` is a run, its checkpoints directory, or one checkpoint; ``which`` is ``latest`` (the
    default for a run), ``best`` or a number of steps. Sizes are checked, contents are not: use
    :func:`load_checkpoint` to read one, which also falls back from a damaged ``latest``.
    """
    if which is None and _is_checkpoint(path):
        return path.resolve()
    return _store_of(path).find(which or LATEST)


def load_checkpoint(
    path: Path, which: str | None = None, parts: Iterable[str] | None = None
) -> Checkpoint:
    """Load what :func:`find_checkpoint` describes, verified, with the fallback of ``latest``."""
    if which is None and _is_checkpoint(path):
        resolved = path.resolve()
        return CheckpointStore(resolved.parent).load(resolved, parts)
    return _store_of(path).load(which or LATEST, parts)


def _is_checkpoint(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _store_of(path: Path) -> CheckpointStore:
    if _is_checkpoint(path):
        return CheckpointStore(path.resolve().parent)
    if is_run(path):
        return CheckpointStore(path / "checkpoints")
    store = CheckpointStore(path)
    if (path.name == "checkpoints" and path.is_dir()) or store.steps_available():
        return store
    raise no_such_run(path)
