"""R2D2 remembers what it saw once, in a short T-maze; without a memory it is at chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery

SHORT: dict[str, Any] = {
    "env": {"kwargs": {"length": 4}},
    "r2d2": {"learning_starts": 500, "length": 8, "overlap": 4, "burn_in": 4},
    "eval": {"every_steps": 2_000, "episodes": 40},
    "steps": 30_000,
}


def score(path: Path, **changes: Any) -> float:
    given = SHORT | {
        name: SHORT[name] | value if name in SHORT and isinstance(value, dict) else value
        for name, value in changes.items()
    }
    run = rookery.train("r2d2-memory", run=path / "run", **given)
    return float(run.evaluate(100, deterministic=True, seed=5)["return_mean"])


@pytest.mark.long
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_core_remembers_the_signal(core: str, tmp_path: Path) -> None:
    assert score(tmp_path, policy={"core": core}) > 0.97


@pytest.mark.long
def test_without_a_core_it_is_at_chance(tmp_path: Path) -> None:
    assert score(tmp_path, policy={"core": "none"}, r2d2={"burn_in": 0}, steps=10_000) < 0.7
