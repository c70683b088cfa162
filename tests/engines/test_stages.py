"""What a run says of itself while it does not train: how it starts, fills replay, is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rookery.recipes.settings import settings_from_python
from rookery.runs import lines, session
from rookery.runs.lines import Lines, NotebookLine
from rookery.runs.session import Callbacks
from rookery.runs.stage import FIRST_BATCH, Stage
from rookery.training import start_run
from tests.faults.test_local_faults import WORLD

SLOW_EPISODES: dict[str, Any] = {"episodes": 6, "num_envs": 1}


class Heard:
    """Everything that a display is told."""

    def __init__(self) -> None:
        self.stages: list[Stage | None] = []
        self.steps: list[int] = []
        self.records: list[dict[str, Any]] = []

    def record(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def train(self, path: Path, **settings: Any) -> None:
        config = settings_from_python(WORLD, settings)
        told = Callbacks(
            on_record=[self.record], on_stage=self.stages.append, on_steps=self.steps.append
        )
        start_run(config, path=path, callbacks=told)

    def of(self, what: str) -> list[Stage]:
        return [stage for stage in self.stages if stage is not None and stage.what == what]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "local"])
def test_stages_of_a_run(engine: str, tmp_path: Path) -> None:
    heard = Heard()
    heard.train(
        tmp_path / "run",
        engine=engine,
        env={"num_envs": 4, "kwargs": {"step_secs": 0.01}},
        ppo={"rollout_steps": 10, "num_epochs": 1, "num_minibatches": 1},
        steps=200,
        log_every=160,
        eval=SLOW_EPISODES,
    )
    begun = heard.stages.index(None)
    assert heard.stages[begun - 1] == FIRST_BATCH
    beginning = [stage.text for stage in heard.stages[: begun - 1] if stage is not None]
    if engine == "inline":
        assert beginning == ["starting: 4 environments"]
    else:
        assert beginning == [f"starting, {number} of 3 processes" for number in range(3)]
    played = heard.of("final evaluation")
    assert heard.stages[begun + 1 :] == played, "nothing but that after it has begun to train"
    assert played[0].text == "final evaluation, 0 of 6 episodes"
    assert [stage.done for stage in played] == sorted({stage.done for stage in played})
    assert played[-1].done > 1, "it moves"
    assert heard.steps[0] < heard.records[0]["steps"], "steps move before the first record"


def test_training_waits_for_an_evaluation_under_inline(tmp_path: Path) -> None:
    heard = Heard()
    heard.train(
        tmp_path / "run",
        env={"num_envs": 4, "kwargs": {"step_secs": 0.004}},
        ppo={"rollout_steps": 10, "num_epochs": 1, "num_minibatches": 1},
        steps=120,
        eval=SLOW_EPISODES | {"every_steps": 40},
    )
    texts = [stage and stage.text for stage in heard.stages]
    first = texts.index("evaluation, 0 of 6 episodes")
    assert None in texts[:first], "it trained before"
    assert None in texts[first:], "and after"
    assert "final evaluation, 0 of 6 episodes" in texts


def test_how_full_replay_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "TELL_SECS", 0.0)
    heard = Heard()
    heard.train(
        tmp_path / "run",
        algo="dqn",
        dqn={"learning_starts": 100, "capacity_steps": 1_000},
        env={"num_envs": 4},
        eval={"episodes": 0},
        steps=160,
        log_every=40,
    )
    filling = heard.of("filling replay")
    assert {stage.total for stage in filling} == {100}
    counts = [stage.done for stage in filling]
    assert counts == sorted(counts)
    assert counts[0] < 50 < counts[-1] <= 104
    assert filling[-1] in heard.stages[: heard.stages.index(None)], "then it trains"


def test_plain_lines_say_a_stage_once_and_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(lines.time, "monotonic", lambda: now)
    plain = Lines()
    plain.stage(Stage("starting", 1, 3, "processes", brief=True))
    for done in range(3):
        plain.stage(Stage("final evaluation", done, 9, "episodes"))
    assert capsys.readouterr().err == "final evaluation, 0 of 9 episodes\n"
    now += lines.STAGE_SECS
    plain.stage(Stage("final evaluation", 7, 9, "episodes"))
    plain.stage(Stage("final evaluation", 8, 9, "episodes"))
    assert capsys.readouterr().err == "final evaluation, 7 of 9 episodes\n"
    plain.stage(None)
    now += lines.STAGE_SECS
    plain.stage(Stage("starting", 2, 3, "processes", brief=True))
    assert capsys.readouterr().err == "starting, 2 of 3 processes\n", "it is not so brief"


def test_a_notebook_shows_how_far_a_stage_is(capsys: pytest.CaptureFixture[str]) -> None:
    line = NotebookLine()
    for done in range(3):
        line.stage(Stage("final evaluation", done, 9, "episodes"))
    assert capsys.readouterr().err.split("\r")[-1].rstrip() == "final evaluation, 2 of 9 episodes"
