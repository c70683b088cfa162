"""What a run does while it does not train, and how far it is with that; for displays."""

from __future__ import annotations

from dataclasses import dataclass

_START = "starting"


@dataclass(frozen=True, slots=True)
class Stage:
    """Such as ``final evaluation, 12 of 100 episodes``."""

    what: str
    done: int = 0
    total: int = 0
    """0: nobody knows how much there is to do."""
    of: str = ""
    """What is counted."""
    brief: bool = False
    """Over within seconds as a rule: not worth a line that stays."""

    @property
    def is_start(self) -> bool:
        """Whether the session has not begun: its training time does not count yet."""
        return self.what.startswith(_START)

    @property
    def text(self) -> str:
        """In a few words."""
        if not self.total:
            return self.what
        return f"{self.what}, {min(self.done, self.total):,} of {self.total:,} {self.of}"


def starting(what: str) -> Stage:
    """What it takes to begin."""
    return Stage(f"{_START}: {what}", brief=True)


def started(done: int, total: int) -> Stage:
    """How many processes are there."""
    return Stage(_START, done, total, "processes", brief=True)


START = Stage(_START, brief=True)
FIRST_BATCH = Stage("collecting the first batch", brief=True)
"""Everybody is there, and nothing was learned yet."""
