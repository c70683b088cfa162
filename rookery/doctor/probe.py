"""Things tried in a process of their own, because trying may end the process that tries."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

TIMEOUT_SECS = 30.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What a probe printed before it ended, and how it ended."""

    said: dict[str, Any]
    code: int | None
    """None: it took too long."""
    last_words: str
    timeout_secs: float = TIMEOUT_SECS

    @property
    def fate(self) -> str:
        """How it ended, in words; empty if well."""
        if self.code == 0:
            return ""
        if self.code is None:
            return f"no answer within {self.timeout_secs:g} s"
        if self.code == -signal.SIGILL:
            return "illegal instruction"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        return self.last_words or f"exit code {self.code}"


def try_out(code: str, timeout_secs: float = TIMEOUT_SECS) -> Tried:
    """Run Python ``code``, which prints lines of JSON objects."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_secs,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Tried({}, None, "", timeout_secs)
    said: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            said |= json.loads(line)
    lines = done.stderr.strip().splitlines()
    return Tried(said, done.returncode, lines[-1] if lines else "")
