"""A small maze that random walks do not solve, found by curiosity and then exploited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery

SMALL: dict[str, Any] = {
    "env": {"kwargs": {"rooms": [1, 4], "max_steps": 30, "haste": 0.0}},
    "policy": {"hidden": [64, 64]},
    "metrics": {"sinks": ["jsonl"], "info_keys": []},
    "eval": {"episodes": 2, "every_steps": 1_000, "num_envs": 2},
    "log_every": 1_000,
    "save_every": 1_000_000,
}
"""A random walk gets through in 3 of a million episodes; the shortest way has 20 steps."""


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["ngu-maze", "agent57-maze"])
def test_curiosity_finds_the_goal_and_the_first_arm_goes_there(recipe: str, tmp_path: Path) -> None:
    run = rookery.train(recipe, run=tmp_path / "run", steps=40_000, stop_at=0.95, **SMALL)
    assert run.solved
    assert run.evaluate(2, deterministic=True)["return_mean"] == 1.0
