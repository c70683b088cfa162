"""Half-written directories: claimed by a lock while their writer lives, deleted once it is dead.

A writer fills a directory of a ``.tmp-`` name and renames it when it is whole::

    os.mkdir(temp)
    with claimed(temp):
        ...                           # write its files, rename it into place

Whoever comes later deletes what a killed writer left::

    for path in directory.glob(f"{TEMP_PREFIX}*"):
        if abandoned(path):
            delete(path)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

_ABANDONED_SECS = 3600.0


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold a lock on a directory: whoever finds it unlocked knows that its writer is dead."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def abandoned(path: Path) -> bool:
    """Whether nobody writes ``path`` any more: its lock is free, or it is old."""
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


def delete(path: Path) -> None:
    """Delete a file, a link or a directory with all it holds."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
