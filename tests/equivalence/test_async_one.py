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


@pytest.mark.slow
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


@pytest.mark.slow
def test_where_rollouts_wait_they_are_old_and_the_weights_others(tmp_path: Path) -> None:
    """The gate above would see a difference. In one thread each actor has a turn, then the learner:
    of two rollouts in a round it takes one, until all slots are full."""
    halved = {"num_actors": 2, "batch_envs": 2}
    runs = [
        rookery.train(
            "CartPole-v1",
            run=tmp_path / f"{slots}",
            formation="async",
            **SETTINGS,
            **{"async": halved | {"slots_per_actor": slots}},
        )
        for slots in (1, 2)
    ]
    assert final_bytes(runs[0], "weights") != final_bytes(runs[1], "weights")
    for slots, lag in ((1, 1), (2, 3)):
        last = read_metrics(tmp_path / f"{slots}" / "metrics.jsonl")[-1]
        assert last["train/lag_mean"] == lag
