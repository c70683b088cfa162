"""Whether two machines see the same run directory.

::

    with probe_in(run) as probe:         # at the head, while hosts may join
        ...
    seen = seen_here(probe, None)        # at a host; one line if it is another directory, or none
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from rookery.core.errors import UserError
from rookery.core.hosts import Probe
from rookery.runs.atomic import write_atomic, writing

_PREFIX = ".shared-"


@contextlib.contextmanager
def probe_in(run: Path) -> Iterator[Probe]:
    """A file of a new name in ``run``, so that no machine remembers an earlier one, or none."""
    for earlier in run.glob(f"{_PREFIX}*"):  # of a process that was killed
        earlier.unlink(missing_ok=True)
    probe = Probe(str(run.absolute()), _PREFIX + secrets.token_hex(8), secrets.token_hex(16))
    path = run / probe.name
    with writing(path):
        write_atomic(path, probe.content.encode())
    try:
        yield probe
    finally:
        path.unlink(missing_ok=True)


def seen_here(probe: Probe, directory: Path | None) -> Path:
    """The head's run directory as this machine sees it: ``directory``, or where the head has it."""
    where = directory if directory is not None else Path(probe.directory)
    try:
        content = (where / Path(probe.name).name).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        content = None
    if content == probe.content:
        return where
    what = "is not here" if not where.is_dir() else "is another directory here"
    raise UserError(
        f"the head's run directory {probe.directory} has to be shared with this machine, and "
        f"{where} {what}; mount it, or say with --run where it is"
    )
