"""A file that a command is told to write: refused early where it cannot go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rookery.core.errors import UserError


def check_out(path: Path, suffixes: Sequence[str], *, force: bool) -> None:
    """Refuse ``--out`` before any work is done for it."""
    if path.suffix not in suffixes:
        ending = f"'{path.suffix}'" if path.suffix else "no ending"
        raise UserError(f"--out {path}: it has {ending}; name a file {' or '.join(suffixes)}")
    if os.path.isdir(path):
        raise UserError(f"--out {path}: it is a directory; give the name of a file")
    if not os.path.isdir(path.parent):
        raise UserError(f"--out {path}: there is no directory {path.parent}; make it first")
    if os.path.exists(path) and not force:
        raise UserError(f"{path} already exists; --force replaces it")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"--out {path}: nothing can be written in {path.parent}; choose another")


def size_text(num_bytes: int) -> str:
    """``37.4 kB``."""
    size = num_bytes / 1000
    return f"{size:.1f} kB" if size < 1000 else f"{size / 1000:.1f} MB"
