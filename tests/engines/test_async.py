"""Formation async in real processes and in threads: counts, refusals, faults of actors."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.cli.main import main
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p

WORLD = "tests.faults.fault_worlds:Plain"
T, B = 10, 2
SMALL: dict[str, Any] = {
    "algo": "impala",
    "formation": "async",
    "impala": {"rollout_steps": T},
    "envs": 2 * B,
    "actors": 2,
    "log_every": 40,
    "save_every": 200,
    "eval": {"episodes": 0},
}


def assert_exact(record: dict[str, Any], *, capacity: int) -> None:
    """Every rollout was put once, taken once, and is learned from or refused."""
    put, taken, refused, learned, waiting = (
        record[f"fleet/rollouts_{name}"]
        for name in ("put", "taken", "refused", "learned", "waiting")
    )
    assert taken == refused + learned
    assert put - taken == waiting
    assert 0 <= waiting <= capacity
    assert record["steps"] == taken * T * B


HOW = {
    "local": {"engine": "local"},
    "threads": {"engine": "inline", "threads": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_counts_are_exact(how: str, tmp_path: Path) -> None:
    run = rookery.train(WORLD, run=tmp_path / "run", steps=2000, **SMALL | HOW[how])
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    for record in records:
        assert_exact(record, capacity=4)
        assert record["fleet/rollouts_refused"] == 0
        assert record["updates"] * 2 == record["fleet/rollouts_learned"]
        assert 0 <= record["train/lag_mean"] <= record["train/lag_max"]
        assert 0 <= record["fleet/actor_wait_share"] <= 1
        assert 0 <= record["fleet/learner_wait_share"] <= 1
    assert run.finish.steps >= 2000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor-")]
    again = rookery.resume(run.path, steps=run.finish.steps + 200)
    assert again.finish.steps >= run.finish.steps + 200


SLOWED = {"algo": "tests.engines.slowed:Slowed", "slowed": {"rollout_steps": T, "pause_secs": 0.03}}


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_a_slowed_learner_is_named_and_refuses_what_is_too_old(how: str, tmp_path: Path) -> None:
    given = {name: value for name, value in (SMALL | HOW[how]).items() if name != "impala"}
    given |= SLOWED | {"async": {"batch_envs": B, "max_lag": 2}}
    rookery.train(WORLD, run=tmp_path / "run", steps=2400, **given)
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert all(record["train/lag_max"] <= 2 for record in records)
    last = records[-1]
    assert last["fleet/rollouts_refused"] > 0
    assert last["fleet/rollouts_taken"] == (
        last["fleet/rollouts_refused"] + last["fleet/rollouts_learned"]
    )
    assert last["fleet/actor_wait_share"] > last["fleet/learner_wait_share"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "inline"])
def test_an_exception_of_an_actor_is_one_line(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = [
        "--algo", "impala", "--formation", "async", "--actors", "2", "--envs", "4",
        "--eval.episodes", "0", "--engine", engine, "--run", str(tmp_path / "run"),
    ]  # fmt: skip
    if engine == "inline":
        flags += ["--threads", "true"]
    assert main(["train", "tests.faults.fault_worlds:Raises", *flags]) == 3
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("rookery:")]
    assert len(told) == 1
    assert re.search(r"actor-\d: .*the pole is on fire", told[0])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor-")]


@pytest.mark.slow
def test_an_environment_that_hangs_in_a_thread_ends_the_run(tmp_path: Path) -> None:
    words = [
        "tests.faults.fault_worlds:HangsInC", "--algo", "impala", "--formation", "async",
        "--threads", "true", "--actors", "2", "--envs", "4", "--eval.episodes", "0",
        "--env.kwargs.marker", str(tmp_path / "marker"), "--env.step_timeout_secs", "1",
    ]  # fmt: skip
    process = p.start(tmp_path / "run", *words)
    _, errors = process.communicate(timeout=p.PATIENCE_SECS)
    assert process.returncode == 3, errors
    assert re.search(r"of actor-\d\) did not return from a step or reset within 1 s", errors)


@pytest.mark.slow
def test_ctrl_c_ends_threads_with_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        WORLD, "--algo", "impala", "--formation", "async", "--threads", "true",
        "--actors", "2", "--envs", "4", "--eval.episodes", "0", "--save-every", "200",
        "--env.kwargs", "{step_secs: 0.002}", "--steps", "1000000",
    ]  # fmt: skip
    process = p.start(run, *words)
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=p.PATIENCE_SECS)
    assert process.returncode == 130, errors
    saved = load_checkpoint(run, "latest")
    assert saved.parts["learner"].data["steps"] == saved.steps


@pytest.mark.slow
def test_the_bottleneck_is_named_in_lines_and_at_the_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--algo", "impala", "--formation", "async", "--steps", "800", "--log-every", "400",
        "--eval.episodes", "0", "--run", str(tmp_path / "run"),
    ]  # fmt: skip
    assert main(["train", WORLD, *words]) == 0
    bound = r"learning \d+ %, lag \d+\.\d updates"
    lines = capfd.readouterr().err.splitlines()
    assert re.search(rf"steps/s  {bound}$", lines[2])
    assert re.search(rf"^finished: .* s; {bound}\)$", lines[-2])
    assert lines[-1].startswith("rookery eval")
