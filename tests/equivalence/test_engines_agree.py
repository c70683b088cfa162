"""The same run under `inline` and `local` gives the same weights, bit for bit.

`sync` has no races: every actor has streams of its own, a block's columns are in the order of the
actors, and the learner waits for all. So the engine must not show in the result at all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.find import find_checkpoint

SETTINGS: dict[str, Any] = {
    "seed": 3,
    "actors": 2,
    "envs": 8,
    "steps": 1500,
    "log_every": 200,
    "ppo": {"rollout_steps": 16, "rollouts_per_update": 2, "num_epochs": 2, "num_minibatches": 2},
    "eval": {"episodes": 3},
}


def final_bytes(run: rookery.Run, part: str) -> bytes:
    return (find_checkpoint(run.path, "latest") / f"{part}.safetensors").read_bytes()


def numbers(run: rookery.Run) -> list[dict[str, Any]]:
    """Records without what the clock says."""
    clocks = ("wall_secs", "eval/saved_wall_secs", "time/", "fleet/")
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(clocks)}
        for line in lines
    ]


@pytest.mark.slow
@pytest.mark.parametrize("core", [pytest.param("none", marks=pytest.mark.long), "lstm"])
def test_local_equals_inline(tmp_path: Path, core: str) -> None:
    policy = {"core": core, "core_size": 16, "normalize_obs": True}
    runs = {
        engine: rookery.train(
            "CartPole-v1", engine=engine, policy=policy, run=tmp_path / engine, **SETTINGS
        )
        for engine in ("inline", "local")
    }
    for part in ("weights", "optimizer"):
        assert final_bytes(runs["inline"], part) == final_bytes(runs["local"], part)
    assert numbers(runs["inline"]) == numbers(runs["local"])
    assert len(numbers(runs["inline"])) > 5
