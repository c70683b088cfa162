"""What a process on a Ray node has to say: into a file of its own, and warnings to the driver."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def logged(path: Path, tell: Callable[..., None] | None = None) -> Iterator[None]:
    """Within the block all that Rookery says goes to ``path``, and by ``tell`` to the driver what
    may need attention."""
    log = logging.getLogger("rookery")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    handlers: list[logging.Handler] = [file, *([_Told(tell)] if tell is not None else [])]
    before = log.level
    log.setLevel(logging.INFO)
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    except Exception as error:
        log.info("ended: %s", error)
        raise
    finally:
        log.setLevel(before)
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


class _Told(logging.Handler):
    """Tells of warnings; errors are told as results."""

    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        self.tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """One of them."""
        self.tell("warning", logger=record.name, text=record.getMessage())
