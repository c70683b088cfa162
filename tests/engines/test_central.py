"""Formation central in real processes: every request is answered, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p

COMMON: dict[str, Any] = {
    "formation": "central",
    "engine": "local",
    "actors": 4,
    "envs": 8,
    "stop_at": None,
    "log_every": 500,
    "eval": {"episodes": 0},
    "policy": {"hidden": [16]},
}
STEPS = {"batch_size": 16, "learning_starts": 200, "capacity_steps": 5000, "steps_per_update": 8}
LEARNS: dict[str, dict[str, Any]] = {
    "steps": {"algo": "dqn", "dqn": STEPS},
    "rounds": {"algo": "ppo", "ppo": {"rollout_steps": 20, "num_epochs": 1}},
    "two networks": {"algo": "impala", "central": {"num_inference": 2, "max_batch_envs": 3}},
}


@pytest.mark.slow
@pytest.mark.parametrize("learns", LEARNS)
def test_each_request_of_four_actors_is_answered_once(learns: str, tmp_path: Path) -> None:
    """What environments made is what was counted, but for what was under way at the end."""
    world = tmp_path / "world"
    world.mkdir()
    run = rookery.train(
        "tests.engines.counting_env:Counts",
        run=tmp_path / p.own_name(),
        steps=3000,
        env={"kwargs": {"folder": str(world)}},
        **COMMON | LEARNS[learns],
    )
    assert not p.everyone(run.path)
    files = [path for path in world.iterdir() if path.stat().st_size]
    made = 0
    for path in files:
        lines = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
        assert [number for number, _ in lines] == list(range(1, len(lines) + 1))
        assert {action for _, action in lines} == {0, 1}, "chance is not the same for all"
        made += len(lines)
    assert len(files) == 8
    under_way = {"steps": 200, "rounds": 160, "two networks": 8 * 32 * 4}[learns]
    assert run.finish.steps <= made <= run.finish.steps + under_way
    records = read_metrics(run.path / "metrics.jsonl")
    last = [record for record in records if "fleet/actors" in record][-1]
    assert last["fleet/actors"] == 4
    assert 1 <= last["inference/batch_envs"] <= 8
    assert 0 < last["fleet/inference_wait_share"] < 1
    lengths = {
        record.get("rollout/length_mean") for record in read_metrics(run.path / "metrics.jsonl")
    }
    assert lengths - {None} == {10.0}
