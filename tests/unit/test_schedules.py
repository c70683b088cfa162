"""Schedules that end before their run does: said, and stretched if asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

import rookery
from rookery.cli.arguments import split_words
from rookery.cli.main import main
from rookery.core.schedule import LinearSchedule, value_at
from rookery.recipes.catalog import recipe_names
from rookery.recipes.schedules import note_on_schedules
from rookery.recipes.settings import config_from_tree, revised_by_flags, settings_from_flags

SMALL = ("--envs", "4", "--ppo.rollout_steps", "8", "--ppo.num_minibatches", "1")
NO_EVAL = ("--eval.episodes", "0", "--stop-at", "none")


def rate(**flags: str) -> LinearSchedule:
    lr = settings_from_flags("cartpole", flags).optimizer.lr
    assert isinstance(lr, LinearSchedule)
    return lr


@pytest.mark.parametrize("recipe", recipe_names())
def test_no_recipe_ends_with_a_rate_of_zero_or_speaks_of_its_own_schedule(recipe: str) -> None:
    config = settings_from_flags(recipe, {})
    lr = config.optimizer.lr
    assert value_at(lr, config.total_steps) > 0
    assert note_on_schedules(config) is None


def test_stretched_schedules_end_with_the_run() -> None:
    assert rate(steps="5000000", stretch_schedules="true") == LinearSchedule(
        start=2e-3, end=0.0, until_steps=5_000_000, floor=1e-4
    )
    assert rate(steps="5000000").until_steps == 150_000


def test_a_schedule_with_a_floor_stays_above_it() -> None:
    schedule = rate()
    assert schedule.at(75_000) == 1e-3
    assert [schedule.at(steps) for steps in (145_000, 150_000, 10**9)] == [1e-4] * 3


def test_all_schedules_are_stretched_alike_and_only_once() -> None:
    config = settings_from_flags("snake", {"steps": "250000000", "stretch_schedules": "true"})
    lr, entropy = config.optimizer.lr, config.on_policy.entropy_coef
    assert isinstance(lr, LinearSchedule)
    assert isinstance(entropy, LinearSchedule)
    assert [steps for steps, _ in lr.corners] == [0, 60_000_000, 160_000_000, 250_000_000]
    assert entropy.until_steps == 20_000_000
    again = config_from_tree(config.to_tree())
    assert again.optimizer.lr == lr
    longer = revised_by_flags(again, {"steps": "500000000"})
    assert isinstance(longer.optimizer.lr, LinearSchedule)
    assert longer.optimizer.lr.until_steps == 500_000_000


def test_a_schedule_of_ones_own_that_ends_early_is_told() -> None:
    lr = "{start: 1e-3, end: 0, until_steps: 1000}"
    note = note_on_schedules(settings_from_flags("CartPole-v1", {"lr": lr, "steps": "50000"}))
    assert note is not None
    assert "ends at 0 after 1,000 of 50,000 steps" in note
    assert "--stretch-schedules" in note


@pytest.mark.slow
def test_training_on_after_the_schedule_is_told_before_it_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    first = ("train", "cartpole", *SMALL, *NO_EVAL, "--steps", "64", "--run", run, "--plain")
    assert main(list(first)) == 0
    assert "learning rate" not in capfd.readouterr().err
    # As after a whole run; a short one will do, whose schedule is as short.
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("until_steps: 150000", "until_steps: 96"))
    assert main(["resume", run, "--steps", "160000", "--time-limit", "1s"]) == 0
    said = capfd.readouterr().err.splitlines()
    assert said[1].startswith("the learning rate ends at 0.0001 after 96 of 160,000 steps")
    assert (
        main(["resume", run, "--steps", "170000", "--time-limit", "2s", "--stretch-schedules"]) == 0
    )
    assert "learning rate" not in capfd.readouterr().err
    assert "until_steps: 170000" in config.read_text()


def test_python_stretches_too(tmp_path: Path) -> None:
    run = rookery.train(
        "cartpole",
        steps=300_000,
        time_limit=0.2,
        stretch_schedules=True,
        eval={"episodes": 0},
        run=tmp_path / "run",
    )
    assert "until_steps: 300000" in (run.path / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--stretch-schedules"], "true"),
        (["--stretch-schedules", "false"], "false"),
        (["--stretch-schedules=false"], "false"),
        (["--stretch-schedules", "--seed", "3"], "true"),
        (["--stretch-schedules", "cartpole"], "true"),
    ],
)
def test_the_flag_needs_no_value(words: list[str], value: str) -> None:
    assert split_words(words).flags["stretch_schedules"] == value
