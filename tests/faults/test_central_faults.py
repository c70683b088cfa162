"""Real kill -9 of those whom formation central adds: an actor without a network, and inference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.faults.test_local_faults import SLOW_STEPS, WORLD, finish

pytestmark = pytest.mark.slow

COMMON = (
    "--formation", "central", "--engine", "local", "--actors", "2", "--envs", "4", "--log-every",
    "100", "--save-every", "400", "--eval.episodes", "0", "--stop-at", "none", "--policy.hidden",
    "[16]", "--steps", "3000",
)  # fmt: skip
REPLAY = (
    "--algo", "apex", "--apex.batch_size", "16", "--apex.learning_starts", "100",
    "--apex.capacity_steps", "2000", "--apex.steps_per_update", "8",
)  # fmt: skip
ALGORITHMS = {
    "steps": REPLAY,
    "rounds": ("--algo", "a2c", "--a2c.rollout_steps", "20"),
    "queue": ("--algo", "impala", "--impala.rollout_steps", "20"),
}
CASES = ("steps", "rounds", pytest.param("queue", marks=pytest.mark.long))
VICTIMS = ("actor-1", "inference-0", "actor-0")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)


def killed_and_replaced(run: Path, name: str) -> None:
    """And the run goes on, the others as they were."""
    steps, before = p.until(lambda: p.steps(run), "a record"), p.members(run)
    p.kill(before[name])
    p.until(lambda: p.members(run).get(name) not in (None, before[name]), f"a new {name}")
    now = p.members(run)
    assert all(now[other] == before[other] for other in before if other != name)
    p.until(lambda: p.steps(run) >= steps + 200, "it to go on")


@pytest.mark.parametrize("learns", CASES)
def test_whoever_dies_is_replaced_alone(learns: str, run: Path) -> None:
    """Episodes have ten steps; one that goes on with another's would have more or fewer."""
    process = p.start(run, WORLD, *COMMON, *ALGORITHMS[learns], *SLOW_STEPS)
    for name in VICTIMS:
        killed_and_replaced(run, name)
    code, errors = finish(process)
    assert code == 0, errors
    for name in VICTIMS:
        assert f"{name}: killed by SIGKILL; replaced" in errors
    records = read_metrics(run / "metrics.jsonl")
    steps = [record["steps"] for record in records]
    assert steps == sorted(steps), "no step is counted twice"
    assert records[-1]["fleet/restarts"] == 3
    lengths = {record.get("rollout/length_mean") for record in records}
    assert lengths - {None} == {10.0}, "no episode is joined to another's beginning"
    assert records[-1]["inference/batch_envs"] >= 1
    assert 0 < records[-1]["inference/latency_ms_p50"] <= records[-1]["inference/latency_ms_p99"]
