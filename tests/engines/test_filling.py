"""Before the first batch is learned from, a run counts, records, ends and is stopped as later."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.faults.test_local_faults import WORLD

SETTINGS: dict[str, Any] = {
    "algo": "dqn",
    "dqn": {"learning_starts": 1_000, "capacity_steps": 5_000},
    "env": {"num_envs": 4, "kwargs": {"step_secs": 0.001}},
    "eval": {"episodes": 0},
    "log_every": 100,
}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_a_run_of_fewer_steps_than_learning_starts_ends_and_goes_on(
    engine: str, tmp_path: Path
) -> None:
    first = rookery.train(WORLD, run=tmp_path / "run", engine=engine, steps=300, **SETTINGS)
    assert first.finish.updates == 0
    assert 300 <= first.finish.steps < 1_000
    records = read_metrics(first.path / "metrics.jsonl")
    assert records[0]["updates"] == 0
    if engine == "inline":  # elsewhere the learner looks a few times a second
        assert [record["steps"] // 100 for record in records] == [1, 2, 3]
    assert load_checkpoint(first.path).steps == first.finish.steps
    again = rookery.resume(first.path, steps=1_500)
    assert again.finish.updates > 0
    assert 1_500 <= again.finish.steps < 2_000


def test_its_time_may_be_over_before(tmp_path: Path) -> None:
    run = rookery.train(WORLD, run=tmp_path / "run", time_limit=0.01, steps=900, **SETTINGS)
    assert "time limit" in run.finish.outcome.reason
    assert run.finish.steps < 900


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "local"])
def test_ctrl_c_ends_it_with_a_checkpoint(engine: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [
        WORLD, "--algo", "dqn", "--engine", engine, "--envs", "2", "--log-every", "20",
        "--dqn.learning_starts", "90000", "--env.kwargs", "{step_secs: 0.002}",
    ]  # fmt: skip
    process = p.start(run, *words)
    metrics = run / "metrics.jsonl"
    p.until(lambda: metrics.exists() and metrics.stat().st_size, "a record")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=p.PATIENCE_SECS)
    assert process.returncode == 130, errors
    assert load_checkpoint(run).parts["learner"].data["updates"] == 0
