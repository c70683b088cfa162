"""`steps_per_update` holds whatever sequences look like and however short episodes are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rookery

STEPS, STARTS, ASKED = 1_200, 200, 8.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        {"length": 8, "overlap": 4, "burn_in": 2},
        {"length": 40, "overlap": 0, "burn_in": 0},  # longer than any episode
        {"length": 4, "overlap": 3, "burn_in": 4},
    ],
    ids=str,
)
def test_the_ratio_is_the_one_asked_for(shape: dict[str, int], tmp_path: Path) -> None:
    assert updates(tmp_path, **shape) == pytest.approx((STEPS - STARTS) / ASKED, rel=0.1)


@pytest.mark.slow
def test_fewer_steps_than_a_sequence_has_do_not_stop_both_sides(tmp_path: Path) -> None:
    shape = {"length": 40, "overlap": 0, "burn_in": 40}
    found = updates(tmp_path, learning_starts=1, **shape)
    assert found == pytest.approx(STEPS / ASKED, rel=0.1)


def updates(path: Path, **r2d2: Any) -> int:
    """Updates of a short run in a short maze."""
    run = rookery.train(
        "r2d2-memory",
        run=path / "run",
        steps=STEPS,
        stop_at=None,
        log_every=100,
        env={"kwargs": {"length": 4}, "num_envs": 4},
        policy={"hidden": [4], "core": "gru", "core_size": 4},
        r2d2={"learning_starts": STARTS, "batch_size": 4, "steps_per_update": ASKED, **r2d2},
        eval={"episodes": 0},
    )
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").open()]
    return max(int(record.get("updates", 0)) for record in records)
