"""NGU and Agent57 under ``inline``: killed and resumed equals never stopped, bit for bit.

Memories of episodes, moments of novelty, arms and the windows of their bandits are saved with the
actors; networks that tell the new with the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.find import load_checkpoint
from tests.equivalence.test_resume_exact import assert_same_run, train_and_be_killed

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "envs": 3,
    "policy": {"hidden": [8]},
    "eval": {"episodes": 2, "every_steps": 500, "max_steps": 20},
    "log_every": 60,
    "save_every": 200,
    "seed": 7,
    "env": {"kwargs": {"max_steps": 17}},
}
LEARN: dict[str, Any] = {
    "batch_size": 8,
    "capacity_steps": 700,
    "learning_starts": 100,
    "steps_per_update": 8,
    "target_every": 5,
    "novelty": {"capacity": 12, "embedding_features": 4, "distilled_features": 4, "lr_scale": 2.0},
}
FLAT = {"length": 1, "burn_in": 0}
CASES: dict[str, dict[str, Any]] = {
    "ngu, feed-forward": SMALL
    | {"algo": "ngu", "ngu": LEARN | FLAT | {"family": {"num_arms": 4, "choice": "uniform"}}},
    "agent57, lstm, two actors": SMALL
    | {
        "algo": "agent57",
        "agent57": LEARN
        | {"length": 6, "burn_in": 3, "family": {"num_arms": 4, "window": 9, "random_share": 0.3}},
        "actors": 2,
        "envs": 6,
        "policy": {"hidden": [8], "core": "lstm", "core_size": 4},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_killed_and_resumed_is_never_stopped(case: str, tmp_path: Path) -> None:
    given = CASES[case]
    straight = rookery.train("rookery/Maze-v0", run=tmp_path / "straight", steps=900, **given)
    killed = tmp_path / "killed"
    train_and_be_killed("rookery/Maze-v0", killed, given, steps=900, at=500)
    resumed = rookery.resume(killed)
    assert resumed.finish.updates == straight.finish.updates
    assert_same_run(straight.path, killed)
    actor = load_checkpoint(killed, "latest", ["actor-0"]).parts["actor-0"]
    assert {"curiosity/memory/places", "curiosity/moments", "curiosity/arms/arm"} <= set(
        actor.arrays
    )


def test_two_runs_of_one_seed_are_one(tmp_path: Path) -> None:
    given = CASES["ngu, feed-forward"]
    runs = [
        rookery.train("rookery/Maze-v0", run=tmp_path / name, steps=400, **given)
        for name in ("one", "other")
    ]
    assert_same_run(runs[0].path, runs[1].path)
