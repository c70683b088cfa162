"""The secret by which the head of a run knows its hosts.

Whoever has it can take part in the run. It is kept in the run directory for the owner's eyes only,
so that a resumed head has the same, and stands in no log, title or configuration.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from rookery.core.errors import UserError
from rookery.runs.atomic import write_atomic, writing

_LOG = logging.getLogger(__name__)
VARIABLE = "ROOKERY_TOKEN"
FILE_NAME = "token"
MIN_LENGTH, MAX_LENGTH = 16, 1024
_FORM = re.compile(r"[!-~]+")


def make_token() -> str:
    """A new one, that nobody can guess."""
    return secrets.token_urlsafe(32)


def given_token(file: Path | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The token of ``--token-file``, else of ROOKERY_TOKEN; None if neither is there."""
    if file is not None:
        return read_token(file)
    text = environ.get(VARIABLE, "").strip()
    return _checked(text, VARIABLE) if text else None


def token_of_run(directory: Path, given: str | None = None) -> str:
    """``given``, else the one that the run has, else a new one; the run has it from now on."""
    path = directory / FILE_NAME
    token = given
    if token is None:
        token = read_token(path) if path.exists() else make_token()
    with writing(path):
        write_atomic(path, f"{token}\n".encode(), mode=0o600)
    return token


def read_token(path: Path) -> str:
    """The token in ``path``; a file that others may read is told."""
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MAX_LENGTH + 2).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the token in {path}: {error}; check --token-file") from error
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        _LOG.warning(f"{path} can be read by others, and so the run be joined; chmod 600 {path}")
    return _checked(text, str(path))


def _checked(text: str, where: str) -> str:
    if not MIN_LENGTH <= len(text) <= MAX_LENGTH or not _FORM.fullmatch(text):
        raise UserError(
            f"{where}: a token is {MIN_LENGTH} to {MAX_LENGTH} visible ASCII characters without "
            "blanks; leave it out and the head makes one"
        )
    return text


def same_token(one: str, other: str) -> bool:
    """Compared in a time that says nothing about either."""
    return hmac.compare_digest(one.encode(), other.encode())
