"""Commands in processes of their own that are told to end, or lose their reader."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rookery.cli.main import main
from rookery.runs.find import load_checkpoint
from tests.forks import forked

REPOSITORY = Path(__file__).resolve().parents[2]


def status_of(run: Path) -> Any:
    return json.loads((run / "status.json").read_text())


@contextmanager
def in_process(*words: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which does not outlive the block."""
    with forked(
        *words,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    ) as child:
        try:
            yield child
        finally:
            child.kill()


ENDLESS = ["train", "cartpole", "--steps", "100000000", "--stop-at", "none", "--log-every", "1000"]
SLOW_WORLD = """
import time
import gymnasium as gym

class Slow(gym.Wrapper):
    def step(self, action):
        time.sleep(5.0)
        return self.env.step(action)

def make():
    return Slow(gym.make("CartPole-v1"))
"""


def wait_for(path: Path, secs: float = 180.0) -> None:
    deadline = time.monotonic() + secs
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_ends_properly(number: signal.Signals, code: int, tmp_path: Path) -> None:
    with in_process(*ENDLESS, "--run", "r", cwd=tmp_path) as child:
        wait_for(tmp_path / "r" / "metrics.jsonl")
        child.send_signal(number)
        _, err = child.communicate(timeout=60)
    assert child.returncode == code, err
    assert "ending with a checkpoint" in err
    assert "Traceback" not in err
    status = status_of(tmp_path / "r")
    assert (status["state"], status["reason"]) == ("interrupted", number.name)
    assert load_checkpoint(tmp_path / "r", "latest").steps == status["steps"]
    more = ["--steps", str(status["steps"] + 100), "--quiet"]
    assert main(["resume", str(tmp_path / "r"), *more]) == 0


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow_world.py").write_text(SLOW_WORLD)
    with in_process("train", "slow_world:make", "--run", "r", cwd=tmp_path) as child:
        wait_for(tmp_path / "r" / "status.json")
        time.sleep(2.0)
        child.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert child.poll() is None, "the first waits for the step"
        child.send_signal(signal.SIGINT)
        asked = time.monotonic()
        _, err = child.communicate(timeout=60)
    assert time.monotonic() - asked < 4.0
    assert child.returncode == 130, err
    assert "Traceback" not in err
    assert status_of(tmp_path / "r")["state"] == "interrupted"


@pytest.mark.slow
def test_a_closed_pipe_is_no_error() -> None:
    line = f"{sys.executable} -m rookery train cartpole --help | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0
    assert done.stderr == ""
