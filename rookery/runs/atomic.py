"""Files that are always whole: a reader sees the old content or the new, never a part of it.

Everything is written beside its place under a ``.tmp-`` name, synced, and renamed::

    with writing(path):                       # OSError becomes one line the user can act on
        write_atomic(path, text.encode())
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from rookery.core.errors import UserError

TEMP_PREFIX = ".tmp-"
"""How the name of everything half-written begins; a reader skips such names."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class WriteError(UserError):
    """A file of the run could not be written; what was there before is intact."""


@contextlib.contextmanager
def writing(path: Path, flag: str = "--run") -> Iterator[None]:
    """Turn an :class:`OSError` of the block into a :class:`WriteError` that names ``path``.

    ``flag`` is the one by which the user chose the place.
    """
    try:
        yield
    except OSError as error:
        raise WriteError(_explain(path, error, flag)) from error


def _explain(path: Path, error: OSError, flag: str) -> str:
    if error.errno in _FULL:
        what = "quota is used up" if error.errno == errno.EDQUOT else "disk is full"
        then = "" if flag == "--run" else ", and try again"
        return f"cannot write {path}: the {what}; free some space there{then}"
    if error.errno in _FORBIDDEN:
        why = error.strerror or "permission denied"
        return f"cannot write {path}: {why}; make it writable or choose another {flag}"
    why = error.strerror or str(error)
    return f"cannot write {path}: {why}; check the disk or choose another {flag}"


def temp_name(path: Path) -> Path:
    """A new name beside ``path`` to write under before renaming."""
    return path.with_name(f"{TEMP_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")


def write_atomic(path: Path, data: bytes, *, durable: bool = True, mode: int = 0o666) -> None:
    """Replace the content of ``path``; ``durable`` waits until a power cut cannot undo it.

    ``mode`` is whom it is for from the first moment, 0o600 for its owner alone.
    """
    temp = temp_name(path)
    try:
        with open(temp, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def link_atomic(link: Path, target: str, *, durable: bool = True) -> None:
    """Point the symbolic link ``link`` at ``target``, which is relative to its directory."""
    temp = temp_name(link)
    os.symlink(target, temp)
    try:
        os.replace(temp, link)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(link.parent)


def sync_directory(path: Path) -> None:
    """Make the names in ``path`` survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
