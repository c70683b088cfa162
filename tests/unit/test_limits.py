"""Limits: of time, of episodes, and of what can be lost."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.cli.main import main
from rookery.envs.make import EnvConfig, has_time_limit
from rookery.recipes.settings import settings_from_flags
from rookery.roles import evaluator
from rookery.runs.atomic import WriteError
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.directory import RunDirectory
from rookery.runs.metrics import read_metrics
from rookery.training import Run, evaluate_run

ENDLESS = "tests.toy_worlds:Endless"
SETTINGS: dict[str, Any] = {
    "envs": 2,
    "ppo": {"rollout_steps": 8, "num_minibatches": 1, "num_epochs": 1},
    "policy": {"hidden": [8]},
    "metrics": {"sinks": ["jsonl"]},
}


def train(run: Path, what: str = ENDLESS, **given: Any) -> Run:
    never = {"env": {"kwargs": {"limit": 0}}} if what == ENDLESS else {}
    return rookery.train(what, run=run, **SETTINGS | never | given)


def evaluations(run: Run) -> list[dict[str, Any]]:
    return [each for each in read_metrics(run.path / "metrics.jsonl") if "eval/episodes" in each]


# --- the time limit --------------------------------------------------------------------------


def test_nothing_is_evaluated_after_the_time_limit(tmp_path: Path) -> None:
    run = train(tmp_path / "run", time_limit=0.2, eval={"episodes": 2, "max_steps": 0})
    assert run.finish.outcome.reason == "time limit of 0.2 s reached"
    assert evaluations(run) == []
    assert (run.path / "checkpoints" / "latest").exists()


def test_unless_that_is_asked_for(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "CartPole-v1", time_limit=0.2, eval_after_limit=True)
    assert len(evaluations(run)) == 1


def test_an_evaluation_on_the_way_ends_with_the_time(tmp_path: Path) -> None:
    """Played by the thread that learns, one of an episode without end would never return."""
    run = train(tmp_path / "run", time_limit=1.0, eval_every=64, eval={"max_steps": 0})
    assert run.finish.outcome.reason == "time limit of 1 s reached"
    assert evaluations(run) == []


@pytest.mark.slow
def test_the_evaluator_of_another_process_ends_too(tmp_path: Path) -> None:
    given = {"eval_every": 64, "eval": {"max_steps": 0}, "engine": "local"}
    run = train(tmp_path / "run", time_limit=2.0, **given)
    assert run.finish.outcome.reason == "time limit of 2 s reached"
    assert evaluations(run) == []


# --- episodes without end --------------------------------------------------------------------


def test_an_environment_that_sets_no_limit_gets_one_in_evaluation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(evaluator, "LONGEST", 50)
    with caplog.at_level(logging.WARNING):
        run = train(tmp_path / "run", steps=200, eval_every=64, eval={"episodes": 3})
    notes = [text for text in caplog.messages if "ended after 50 steps" in text]
    assert notes == [
        "3 of 3 episodes were ended after 50 steps, because the environment sets no time limit; "
        "--eval.max_steps N sets another, 0 none"
    ], "said once"
    assert {each["eval/length_mean"] for each in evaluations(run)} == {50.0}
    caplog.clear()
    assert main(["eval", str(run.path), "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lengths"] == [50, 50]
    assert "--max-steps N sets another, 0 none" in caplog.text
    caplog.clear()
    assert evaluate_run(run.path, 2, max_steps=70)["lengths"] == [70, 70]
    assert caplog.text == "", "it was asked for"


def test_none_is_cut_that_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(evaluator, "LONGEST", 5)
    run = train(tmp_path / "run", "CartPole-v1", steps=64, eval={"episodes": 3})
    assert evaluations(run)[-1]["eval/length_mean"] > 5, "it has a limit of its own"
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("settings", "limited"),
    [
        ({"id": "CartPole-v1"}, True),
        ({"id": "CliffWalking-v1"}, False),
        ({"id": "CliffWalking-v1", "max_episode_steps": 9}, True),
        ({"id": ENDLESS}, False),
        ({"id": "ALE/Pong-v5"}, True),
    ],
)
def test_which_environments_set_a_limit(settings: dict[str, Any], limited: bool) -> None:
    assert has_time_limit(EnvConfig(**settings)) == limited


# --- short runs ------------------------------------------------------------------------------


def test_a_run_shorter_than_log_every_has_a_record(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "CartPole-v1", steps=64, eval={"episodes": 0})
    records = read_metrics(run.path / "metrics.jsonl")
    assert [each["steps"] for each in records] == [run.finish.steps]
    assert records[0]["train/grad_norm"] > 0
    assert main(["plot", str(run.path), "--y", "train/entropy"]) == 0


@pytest.mark.parametrize("total", [128, 160])
def test_the_last_record_is_of_the_end_and_not_written_twice(tmp_path: Path, total: int) -> None:
    run = train(tmp_path / "run", steps=total, log_every=64, eval={"episodes": 0})
    records = read_metrics(run.path / "metrics.jsonl")
    assert [each["steps"] for each in records] == sorted({64, 128, total})


# --- what can be lost ------------------------------------------------------------------------


def test_a_checkpoint_is_made_before_much_time_has_passed(tmp_path: Path) -> None:
    run = train(
        tmp_path / "run",
        time_limit=1.0,
        save_every=1_000_000_000,
        checkpoint={"every_secs": 0.2},
        eval={"episodes": 0},
    )
    saved = CheckpointStore(run.path / "checkpoints").steps_available()
    assert len(saved) == 3, "as many as are kept"
    assert settings_from_flags("cartpole", {}).checkpoint.every_secs == 60.0
    with pytest.raises(rookery.UserError, match="every_secs: must be positive, got 0"):
        settings_from_flags("cartpole", {"checkpoint.every_secs": "0"})


def test_the_way_to_go_on_is_one_that_works(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "a run", name="run")
    assert directory.how_to_go_on() == (
        f"it has no checkpoint yet: `rookery train --config '{tmp_path}/a run/config.yaml'` begins "
        "it again"
    )
    run = train(tmp_path / "b", "CartPole-v1", steps=64, eval={"episodes": 0})
    assert RunDirectory.open(run.path).how_to_go_on() == (
        f"`rookery resume {tmp_path}/b` goes on from its checkpoint at step {run.finish.steps}"
    )


def test_a_full_disk_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> None:
        raise WriteError("cannot write x: the disk is full; free some space there")

    monkeypatch.setattr(CheckpointStore, "save", full)
    with pytest.raises(WriteError, match="it has no checkpoint yet: `rookery train --config "):
        train(tmp_path / "run", "CartPole-v1", steps=64)
