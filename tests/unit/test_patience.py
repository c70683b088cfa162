"""Time in which a process stood still is nobody's delay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from rookery.core import patience
from rookery.core.heartbeat import ENV_SINCE, Heartbeat, secs_in_env
from rookery.core.patience import STOOD_STILL_SECS, Attention, Patience


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.moment = 100.0

    def monotonic(self) -> float:
        return self.moment


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(patience, "time", own)
    return own


def test_patience_ends_after_its_time(clock: Clock) -> None:
    waiting = Patience(10.0)
    for _ in range(9):
        clock.moment += 1.0
        assert not waiting.over()
    clock.moment += 1.0
    assert waiting.over()


def test_a_break_counts_for_little(clock: Clock) -> None:
    waiting = Patience(10.0)
    clock.moment += 3600.0
    assert not waiting.over()
    clock.moment += 10.0 - STOOD_STILL_SECS
    assert waiting.over()


def test_attention_begins_anew_after_a_break(clock: Clock) -> None:
    attention = Attention()
    clock.moment += 1.0
    assert attention.look() == 100.0
    clock.moment += 3600.0
    assert attention.look() == clock.moment
    clock.moment += 1.0
    assert attention.look() == clock.moment - 1.0


def test_time_in_an_environment_is_counted_from_when_somebody_looked() -> None:
    heartbeat = Heartbeat()
    assert secs_in_env(heartbeat.cells) == 0.0
    heartbeat.cells[ENV_SINCE] = time.monotonic() - 100.0
    assert secs_in_env(heartbeat.cells) >= 100.0
    assert secs_in_env(heartbeat.cells, not_before=time.monotonic() - 1.0) < 50.0


@pytest.mark.slow
def test_a_step_that_was_stopped_in_did_not_hang() -> None:
    """A real SIGSTOP for longer than the deadline, in the middle of the guarded block."""
    code = """
        import time
        from rookery.envs.timeout import Deadline
        print("in", flush=True)
        with Deadline(1.0):
            begun = time.process_time()
            while time.process_time() - begun < 0.3:
                pass
        print("out", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in\n"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGCONT)
    assert process.stdout.readline() == "out\n"
    assert process.wait(30) == 0
