"""A look with few episodes first, and all of them only if they did well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.core.errors import UserError
from rookery.roles.evaluator import EvalConfig
from rookery.runs.checkpoint import CheckpointStore

WORLD = "tests.faults.fault_worlds:Plain"  # every episode returns 10


def evaluations(path: Path, *, stop_at: float, episodes: int = 8) -> list[dict[str, Any]]:
    rookery.train(
        WORLD,
        run=path,
        steps=400,
        envs=4,
        stop_at=stop_at,
        ppo={"rollout_steps": 10, "num_epochs": 1, "num_minibatches": 1},
        eval={"episodes": episodes, "first_episodes": 3, "every_steps": 100},
    )
    lines = (path / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if "eval/steps" in record]


def test_all_are_played_and_end_the_run_if_the_first_reach_the_score(tmp_path: Path) -> None:
    told = evaluations(tmp_path / "run", stop_at=10.0)
    assert [record["eval/episodes"] for record in told] == [8]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "solved"


def test_only_the_first_are_played_if_they_do_not(tmp_path: Path) -> None:
    told = evaluations(tmp_path / "run", stop_at=11.0)
    assert len(told) > 2
    assert {record["eval/episodes"] for record in told} == {3}
    best = CheckpointStore(tmp_path / "run" / "checkpoints").best_score()
    assert best is not None
    assert best["episodes"] == 3


def test_no_more_than_all_are_played(tmp_path: Path) -> None:
    told = evaluations(tmp_path / "run", stop_at=11.0, episodes=2)
    assert {record["eval/episodes"] for record in told} == {2}


def test_it_must_not_be_negative() -> None:
    with pytest.raises(UserError, match=r"eval.first_episodes: must not be negative"):
        EvalConfig(first_episodes=-1)
