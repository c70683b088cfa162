"""Checkpoints: what a run saves so that it can stop at any instant and go on.

The loop that saves and the code that resumes::

    store = CheckpointStore(run.checkpoints, keep=5)
    store.save(steps, {"weights": State(arrays=weights), "counters": State(data={"updates": 12})})

    checkpoint = store.load("latest", parts=["weights"])     # reads and verifies only this part
    policy.load_state_dict(checkpoint.parts["weights"].arrays)

Directory: ``<steps>/`` of 12 digits each, links ``latest`` and ``best``, ``best.json``. What such a
directory holds is in :mod:`rookery.runs.checkpoint_files`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rookery.core.errors import UserError
from rookery.runs.atomic import (
    TEMP_PREFIX,
    link_atomic,
    sync_directory,
    temp_name,
    write_atomic,
    writing,
)
from rookery.runs.checkpoint_files import (
    MANIFEST,
    OLD_PREFIX,
    Checkpoint,
    State,
    check_sizes,
    directory_name,
    read_checkpoint,
    read_manifest,
    steps_of,
    write_checkpoint,
)
from rookery.runs.half_written import abandoned, claimed, delete
from rookery.runs.tensorfile import DamagedError

_log = logging.getLogger(__name__)

LATEST, BEST, BEST_SCORE = "latest", "best", "best.json"
_LOOKS = 20  # how often `latest` is looked up anew while a running trainer prunes


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
        self._protected: Counter[int] = Counter()

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
        """Keep this checkpoint, which awaits evaluation or a film, until each has released it."""
        self._protected[steps] += 1

    def release(self, steps: int) -> None:
        """Let the next :meth:`save` remove this checkpoint if it is old."""
        self._protected -= Counter([steps])

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
            return read_checkpoint(path, names)
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
        return self.directory / directory_name(steps)

    def _existing(self, steps: int) -> Path | None:
        return self._directories().get(steps)

    def _directories(self) -> dict[int, Path]:
        """Checkpoints by steps; one set aside by an unfinished replacement counts as well."""
        found: dict[int, Path] = {}
        with contextlib.suppress(OSError):
            for path in sorted(self.directory.iterdir()):  # '.old-1' sorts before '1', so '1' wins
                steps = steps_of(path.name)
                if steps is not None and path.is_dir():
                    found[steps] = path
        return found

    def _newest_first(self) -> list[Path]:
        """In the order of saving; after a resume from an old one that is not the order of steps."""
        latest = self._link_target(LATEST)
        ranked = []
        for steps, path in self._directories().items():
            try:
                serial = float(read_manifest(path)["serial"])
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
                    checkpoint = read_checkpoint(path, names)
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
                check_sizes(path, read_manifest(path))
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
            with claimed(temp):
                serial = self._next_serial()
                write_checkpoint(temp, steps, serial, parts, durable=self._durable)
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
                serials.append(int(read_manifest(path)["serial"]))
        return max(serials) + 1

    def _put_in_place(self, temp: Path, path: Path) -> None:
        old = path.with_name(OLD_PREFIX + path.name)
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
            if abandoned(path):
                delete(path)
        for old in self.directory.glob(f"{OLD_PREFIX}*"):
            path = old.with_name(old.name.removeprefix(OLD_PREFIX))
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
        delete(aside)


def _identity(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
