"""From what a user typed to a checkpoint: RUN and ``--checkpoint`` of the command line.

A command that reads a run::

    checkpoint = load_checkpoint(Path("runs/first"), "best", ["weights"])

A path that is not a run gives an error which names the runs that may have been meant.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rookery.core.errors import UserError, near_names
from rookery.runs.checkpoint import LATEST, CheckpointStore
from rookery.runs.checkpoint_files import MANIFEST, Checkpoint

_LOOK_SECS = 0.2


def is_run(path: Path) -> bool:
    """Whether ``path`` is a run directory: it has a config.yaml or checkpoints."""
    # Unlike Path's own, these say no where they may not look.
    return os.path.isfile(path / "config.yaml") or os.path.isdir(path / "checkpoints")


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
    what = "is not a run directory" if os.path.exists(path) else "does not exist"
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


def await_checkpoint(
    run: Path, steps: int, secs: float, should_stop: Callable[[], bool] = lambda: False
) -> bool:
    """Wait until the checkpoint of ``steps`` is seen, as shared storage may show it late, at most
    ``secs``; whether to go on. Loading one that is not there says so."""
    store, deadline = CheckpointStore(run / "checkpoints"), time.monotonic() + secs
    while steps not in store.steps_available() and time.monotonic() < deadline:
        if should_stop():
            return False
        time.sleep(_LOOK_SECS)
    return True


def _is_checkpoint(path: Path) -> bool:
    return os.path.isfile(path / MANIFEST)


def _store_of(path: Path) -> CheckpointStore:
    if _is_checkpoint(path):
        return CheckpointStore(path.resolve().parent)
    if is_run(path):
        return CheckpointStore(path / "checkpoints")
    store = CheckpointStore(path)
    if (path.name == "checkpoints" and os.path.isdir(path)) or store.steps_available():
        return store
    raise no_such_run(path)
