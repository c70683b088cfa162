"""What a run prints: a line a record, or a line each so many episodes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.cli.main import main
from rookery.runs.lines import episode_line

NUMBER = r"-?\d+\.\d+"
RPC_RL = re.compile(
    rf"Episode (\d+) - Step \d+ - Epsilon {NUMBER} - Mean Reward {NUMBER} - Mean Length {NUMBER}"
    rf" - Mean Loss {NUMBER} - Mean Q Value {NUMBER} - Time Delta {NUMBER}"
    r" - Time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
)
SMALL = {"policy": {"hidden": [8]}, "metrics": {"sinks": ["jsonl"]}, "eval": {"episodes": 0}}
DQN: dict[str, Any] = SMALL | {
    "algo": "dqn",
    "env": {"num_envs": 2},
    "dqn": {"batch_size": 4, "learning_starts": 50, "capacity_steps": 400},
}


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_line_has_what_the_record_has() -> None:
    record = {"rollout/episodes": 20, "steps": 3456, "rollout/return_mean": 600.25}
    line = episode_line(record, 12.34)
    assert line.startswith("Episode 20 - Step 3456 - Mean Reward 600.250 - Time Delta 12.3 - Time ")
    whole = record | {
        "train/epsilon": 0.99914,
        "rollout/length_mean": 171.5,
        "window/loss": 0.5,
        "window/value_mean": 12.0,
    }
    assert RPC_RL.fullmatch(episode_line(whole, 1.0))


def test_lines_and_records_come_each_so_many_episodes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = rookery.train("CartPole-v1", run=tmp_path / "run", steps=900, log_episodes=5, **DQN)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("Episode")]
    assert len(lines) > 3
    assert all(RPC_RL.fullmatch(line) for line in lines)
    wrote = records(run.path)
    assert len(wrote) == len(lines)
    told = [record["rollout/episodes"] // 5 for record in wrote[:-1]]  # the last is of the end
    assert told == sorted(set(told)), "one record each five episodes"
    assert wrote[-1]["train/epsilon"] == pytest.approx(1 - 0.95 * run.finish.steps / 10_000)
    assert wrote[-1]["window/loss"] > 0


def test_fields_that_an_algorithm_has_not_are_left_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = "train CartPole-v1 --envs 4 --steps 2000 --log-episodes 20 --plain --eval.episodes 0"
    assert main([*words.split(), "--policy.hidden", "8", "--run", str(tmp_path / "run")]) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("Episode")]
    assert lines
    assert "Mean Policy Loss" in lines[-1]
    assert "Mean Value Loss" in lines[-1]
    assert not any(field in lines[-1] for field in ("Epsilon", "Q Value"))


def test_records_by_steps_have_no_means_of_updates(tmp_path: Path) -> None:
    run = rookery.train(
        "CartPole-v1", run=tmp_path / "run", steps=400, log_every=100, quiet=True, **DQN
    )
    wrote = records(run.path)
    assert [record["steps"] // 100 for record in wrote] == [1, 2, 3, 4]
    assert not any(key.startswith("window/") for record in wrote for key in record)


def test_a_resumed_run_counts_the_time_since_its_last_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = rookery.train("CartPole-v1", run=tmp_path / "run", steps=300, log_episodes=5, **DQN)
    capfd.readouterr()
    rookery.resume(run.path, steps=600)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("Episode")]
    deltas = [float(re.findall(rf"Time Delta ({NUMBER})", line)[0]) for line in lines]
    spent = records(run.path)[-1]["wall_secs"] - run.finish.wall_secs
    assert sum(deltas) == pytest.approx(spent, abs=0.1 * len(deltas))
