"""Processes that somebody has stopped are told of."""

from __future__ import annotations

import signal
import subprocess
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rookery.engines import stopped
from tests.faults.processes import until


def test_a_stopped_process_is_named_once_and_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stopped, "LOOK_SECS", 0.0)
    monkeypatch.setattr(stopped, "TELL_SECS", 0.05)
    watched = stopped.StoppedProcesses()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        fleet: Any = [
            SimpleNamespace(name="learner-0", child=SimpleNamespace(pid=sleeper.pid)),
            SimpleNamespace(name="actor-0", child=None),
        ]
        try:
            for _ in range(3):
                watched.look(fleet)
                time.sleep(0.03)
            assert caplog.messages == []
            sleeper.send_signal(signal.SIGSTOP)
            until(lambda: stopped.is_stopped(sleeper.pid), "it to stop")
            for _ in range(5):
                watched.look(fleet)
                time.sleep(0.03)
            assert len(caplog.messages) == 1
            assert caplog.messages[0].startswith("learner-0 has been stopped for ")
            assert f"`kill -CONT {sleeper.pid}`" in caplog.messages[0]
            sleeper.send_signal(signal.SIGCONT)
            until(lambda: not stopped.is_stopped(sleeper.pid), "it to go on")
            watched.look(fleet)
            assert caplog.messages[1:] == ["learner-0 goes on"]
        finally:
            sleeper.kill()
    assert not stopped.is_stopped(sleeper.pid)
