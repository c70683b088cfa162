"""A signal ends a run within a second or so, however long its rollouts and updates are."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rookery.runs.find import load_checkpoint
from tests.engines.test_mpi import ROOKERY, Ranks
from tests.faults import processes as p
from tests.faults.test_local_faults import finish

pytestmark = pytest.mark.slow

WORLD = "tests.faults.fault_worlds:Marks"
END_SECS = 12.0
"""Of which most is the time that processes take to start and end on a busy machine."""
LONG = (
    "--ppo.rollout_steps", "100000", "--ppo.num_minibatches", "1", "--eval.episodes", "0",
    "--envs", "2", "--stop-at", "none",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)


def acting(markers: Path, number: int) -> Callable[[], bool]:
    """Whether so many processes or threads have made a step."""
    return lambda: len(list(markers.glob("*"))) >= number


def world(tmp_path: Path) -> list[str]:
    markers = tmp_path / "markers"
    markers.mkdir()
    return [WORLD, "--env.kwargs", f"{{step_secs: 0.02, markers: '{markers}'}}"]


FLEETS = {
    "inline": (),
    "threads": ("--threads", "true", "--actors", "2"),
    "sync": ("--engine", "local", "--actors", "2"),
    "async": (
        *("--engine", "local", "--actors", "2", "--algo", "impala", "--formation", "async"),
        *("--impala.rollout_steps", "100000"),
    ),
    "allreduce": ("--engine", "local", "--actors", "2", "--formation", "allreduce"),
    "hogwild": ("--engine", "local", "--actors", "2", "--formation", "hogwild"),
}


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_signal_ends_within_a_rollout(fleet: str, run: Path, tmp_path: Path) -> None:
    flags = list(FLEETS[fleet])
    long = list(LONG[4:]) if "impala" in flags else list(LONG)
    process = p.start(run, *world(tmp_path), *long, *flags)
    p.until(acting(tmp_path / "markers", 2), "all to act")
    process.send_signal(signal.SIGTERM)
    asked = time.monotonic()
    code, errors = finish(process)
    assert time.monotonic() - asked < (4.0 if "local" in flags else 3.0), errors
    assert code == 143, errors
    assert "did not end" not in errors
    assert not p.everyone(run)
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["steps"]) == ("interrupted", 0)
    assert load_checkpoint(run, "latest").steps == 0


@pytest.mark.parametrize("formation", ["sync", "allreduce"])
def test_a_signal_ends_ranks_within_a_rollout(formation: str, run: Path, tmp_path: Path) -> None:
    words = ["train", *world(tmp_path), *LONG, "--formation", formation, "--run", str(run)]
    ranks = Ranks("-n", "3" if formation == "sync" else "2", *ROOKERY, *words)
    p.until(acting(tmp_path / "markers", 2), "all to act")
    ranks.process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    code, said = ranks.end()
    assert time.monotonic() - asked < END_SECS, said
    assert code == 130, said
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    assert load_checkpoint(run, "latest").steps == 0
