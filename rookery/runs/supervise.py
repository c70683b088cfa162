"""Who is replaced and when to give up: pure arithmetic over deaths, no processes here."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rookery.core.errors import UserError


@dataclass(frozen=True, kw_only=True)
class SuperviseConfig:
    """How often a role may die before the run stops."""

    max_restarts: int = 3
    """Replacements of one replica within window_secs before the run stops."""
    window_secs: float = 300.0
    """The window in which they are counted."""

    def __post_init__(self) -> None:
        if self.max_restarts < 0 or self.window_secs <= 0:
            raise UserError(
                "supervise.max_restarts must not be negative and window_secs must be positive"
            )


class RestartBudget:
    """Counts the deaths of each replica within a sliding window.

    ::

        if budget.allow("actor-3"):
            restart it
        else:
            stop the run
    """

    def __init__(
        self, config: SuperviseConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config = config
        self.clock = clock
        self.deaths: dict[str, deque[float]] = {}
        self.total = 0

    def allow(self, replica: str) -> bool:
        """Note a death of ``replica``; whether it may be replaced."""
        deaths = self.deaths.setdefault(replica, deque())
        moment = self.clock()
        while deaths and moment - deaths[0] > self.config.window_secs:
            deaths.popleft()
        deaths.append(moment)
        self.total += 1
        return len(deaths) <= self.config.max_restarts


def describe_exit(code: int) -> str:
    """An exit code as a person reads it: ``killed by SIGKILL`` or ``exit code 1``."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"exit code {code}"
