"""Async with one actor and one slot is sync, bit for bit: nothing can wait, so nothing is old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.metrics import read_metrics
from tests.equivalence.test_engines_agree import final_bytes

SETTINGS: dict[str, Any] = {
    "algo": "impala",
    "impala": {"rollout_steps": 16, "num_minibatches": 2, "reward_max": 0.5},
    "seed": 3,
    "envs": 4,
    "steps": 1200,
    "log_every": 200,
    "eval": {"episodes": 0},
}


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_async_with_one_slot_equals_sync(core: str, tmp_path: Path) -> None:
    policy = {"core": core, "core_size": 8, "hidden": [16], "normalize_obs": True}
    one = {"async": {"slots_per_actor": 1}, "formation": "async"}
    runs = [
        rookery.train("CartPole-v1", run=tmp_path / name, policy=policy, **SETTINGS, **more)
        for name, more in (("sync", {"formation": "sync"}), ("async", one))
    ]
    for part in ("weights", "optimizer"):
        assert final_bytes(runs[0], part) == final_bytes(runs[1], part)
    last = read_metrics(tmp_path / "async" / "metrics.jsonl")[-1]
    assert last["train/lag_max"] == 0
    assert last["train/rho_mean"] == pytest.approx(1.0, abs=0.1)


def test_with_two_slots_rollouts_are_an_update_old_and_the_weights_others(tmp_path: Path) -> None:
    """The gate above would see a difference."""
    runs = [
        rookery.train(
            "CartPole-v1",
            run=tmp_path / f"{slots}",
            formation="async",
            **SETTINGS,
            **{"async": {"slots_per_actor": slots}},
        )
        for slots in (1, 2)
    ]
    assert final_bytes(runs[0], "weights") != final_bytes(runs[1], "weights")
    assert read_metrics(tmp_path / "2" / "metrics.jsonl")[-1]["train/lag_mean"] == 1
