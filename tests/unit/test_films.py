"""Films of saved policies while a run trains."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rookery
from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.core.seeding import seed_of
from rookery.play.video import find_ffmpeg
from rookery.recipes.settings import settings_from_flags
from rookery.roles.recorder import RecordConfig, film_spec, read_film
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import State
from rookery.runs.directory import RunDirectory
from rookery.runs.films import Films
from rookery.runs.metrics import read_metrics
from rookery.runs.trained import load_config
from tests.wired import Crew

ODD = "tests.drawn_envs:Odd"
SMALL: dict[str, Any] = {
    "envs": 2,
    "steps": 96,
    "ppo": {"rollout_steps": 8, "num_minibatches": 1, "num_epochs": 1},
    "policy": {"hidden": [8]},
    "metrics": {"sinks": ["jsonl"]},
    "eval": {"episodes": 2, "every_steps": 32},
    "record": {"episodes": 1},
}


def train(path: Path, what: str = ODD, **more: Any) -> RunDirectory:
    return RunDirectory(rookery.train(what, run=path, quiet=True, **SMALL | more).path)


def told(run: RunDirectory, about: str = "record") -> list[dict[str, Any]]:
    return [each for each in read_metrics(run.metrics_path) if f"{about}/steps" in each]


def pictures(film: Path, tmp_path: Path) -> list[Any]:
    """What a film shows, each as an array ``[height, width, 3]``."""
    command = [find_ffmpeg(), "-loglevel", "error", "-i", str(film), str(tmp_path / "%03d.png")]
    subprocess.run(command, check=True, timeout=60)
    return [np.asarray(Image.open(path)) for path in sorted(tmp_path.glob("*.png"))]


# ---- which are filmed ----------------------------------------------------------------------------


def test_the_newest_that_waits_is_filmed_and_no_more_than_two_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1, durable=False)
    films = Films(store)
    assert films.next() is None
    for steps in (10, 20, 30, 40):
        films.want(steps)
        store.save(steps, {"weights": State()})
        if steps == 10:
            assert films.next() == 10
        assert films.next() is None, "one at a time"
    assert store.steps_available() == [10, 40]
    assert films.skipped == 2
    assert not films.done(40), "nobody has asked for it yet"
    assert films.done(10)
    assert films.next() == 40
    assert films.open
    assert films.done(40)
    assert not films.open
    store.save(50, {"weights": State()})
    assert store.steps_available() == [50]


def test_what_nobody_will_answer_waits_again_unless_there_is_a_newer_one(tmp_path: Path) -> None:
    films = Films(CheckpointStore(tmp_path))
    films.want(10)
    films.ask_again(10)
    assert films.next() == 10
    films.ask_again(10)
    assert films.next() == 10
    films.want(20)
    films.ask_again(10)
    assert films.next() == 20
    assert films.skipped == 1


def test_a_checkpoint_is_kept_until_evaluation_and_film_have_let_go_of_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1, durable=False)
    store.save(1, {"weights": State()})
    store.protect(1)
    store.protect(1)
    for steps, there in ((2, [1, 2]), (3, [1, 3]), (4, [4])):
        store.save(steps, {"weights": State()})
        assert store.steps_available() == there
        store.release(1)  # at last once more than it was protected


# ---- runs ----------------------------------------------------------------------------------------


def test_each_evaluated_policy_is_filmed_where_it_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run")
    evaluated = told(run, "eval")
    filmed = told(run)
    assert [each["record/steps"] for each in filmed] == [each["eval/steps"] for each in evaluated]
    assert [each["record/films"] for each in filmed] == [1, 2, 3]
    assert [path.name for path in run.films()] == [
        f"{each['record/steps']:012d}.mp4" for each in filmed
    ]
    saved = [each["record/saved_wall_secs"] for each in filmed]
    assert saved == [each["eval/saved_wall_secs"] for each in evaluated]
    assert saved == sorted(saved)
    assert all(each["record/saved_wall_secs"] < each["wall_secs"] for each in filmed)
    beside = json.loads(run.films()[0].with_suffix(".json").read_text())
    (episode,) = beside["episodes"]
    assert episode["return"] == filmed[0]["record/return_mean"]
    seed = seed_of(seed_of(load_config(run).seed, "evaluation"), "evaluation", 0)
    assert episode["seed"] == seed, "the first episode of the evaluation"
    frames = pictures(run.films()[-1], tmp_path)
    assert len(frames) == 11, "ten steps, and the start"
    widths = [int((frame[10, :, 0] > 100).sum()) for frame in frames]
    assert all(0 < before < after for before, after in pairwise(widths)), widths
    assert main(["runs", str(tmp_path)]) == 0
    assert "  3 films" in capsys.readouterr().out
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["films"] == 3


@pytest.mark.parametrize("there", [True, False])
def test_who_goes_on_makes_a_film_that_was_due(tmp_path: Path, there: bool) -> None:
    run = train(tmp_path / "run")
    last, before = run.films()[-1], run.films()[-1].stat().st_mtime_ns
    if not there:
        last.unlink()
    rookery.resume(run.path, steps=128, quiet=True)
    assert [path.stem.lstrip("0") for path in run.films()] == ["32", "64", "96", "128"]
    assert (last.stat().st_mtime_ns == before) == there
    assert told(run)[-1]["record/films"] == 4


def test_films_change_nothing_that_is_learned(tmp_path: Path) -> None:
    def learned(path: Path, **more: Any) -> Any:
        run = train(path, **more)
        return CheckpointStore(run.checkpoints).load("latest", ["weights"]).parts["weights"].arrays

    with_films = learned(tmp_path / "with")
    without = learned(tmp_path / "without", record={"episodes": 0})
    assert not (tmp_path / "without" / "videos").exists()
    assert all(np.array_equal(with_films[name], without[name]) for name in without)


def test_without_evaluations_they_have_their_rhythm(tmp_path: Path) -> None:
    run = train(tmp_path / "run", eval={"episodes": 0, "every_steps": 48})
    assert told(run, "eval") == []
    assert [each["record/steps"] for each in told(run)] == [48, 96]
    quiet = train(tmp_path / "quiet", eval={"episodes": 0}, record={"episodes": 2})
    (last,) = told(quiet)
    assert last["record/steps"] == 96
    films = json.loads(quiet.films()[0].with_suffix(".json").read_text())
    assert len(films["episodes"]) == 2


def test_a_film_is_no_longer_than_it_may_be(tmp_path: Path) -> None:
    run = train(tmp_path / "run", record={"episodes": 1, "length_secs": 0.6})
    assert len(pictures(run.films()[0], tmp_path)) == 6
    assert told(run)[0]["record/length_mean"] == 5


@pytest.mark.parametrize(
    ("world", "said"),
    [
        ("tests.drawn_envs:Bare", "cannot be drawn: it has no render modes"),
        ("tests.drawn_envs:Broken", "no paint"),
    ],
)
def test_what_cannot_be_filmed_is_said_once_and_training_goes_on(
    world: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run = train(tmp_path / "run", world)
    (line,) = [each.message for each in caplog.records if "no film" in each.message]
    assert said in line
    assert line.endswith("; training goes on")
    assert told(run) == []
    assert len(told(run, "eval")) == 3
    assert run.films() == []


def test_without_ffmpeg_there_is_one_line_with_its_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with caplog.at_level(logging.WARNING):
        run = train(tmp_path / "run")
    (line,) = [each.message for each in caplog.records if "no film" in each.message]
    assert "no ffmpeg that runs" in line
    assert "pip install imageio-ffmpeg" in line
    assert len(told(run, "eval")) == 3


def test_a_recorder_that_is_to_stop_leaves_no_file_and_the_question(tmp_path: Path) -> None:
    run = train(tmp_path / "run")
    for film in run.films():
        film.unlink()
    left = run.videos / ".tmp-000000000096.mp4-1-ab"
    left.touch()
    mine = run.videos / ".tmp-mine.mp4-1-ab"
    mine.touch()
    asked: list[int] = []

    def stopping() -> Any:
        asked.append(1)
        return "stop" if len(asked) > 3 else None

    crew = Crew(load_config(run), run=run.path)
    recorder = crew.role("recorder", stopping=stopping)
    recorder.start()
    assert (left.exists(), mine.exists()) == (False, True)
    owner = crew.program.owner.name
    client = crew.wired.ports_of(owner, 0).use("recording")
    client.ask(told(run)[-1]["record/steps"])
    recorder.step()
    assert recorder.ready(), "whoever comes next makes it"
    assert list(run.videos.glob("*.mp4*")) == [mine]
    recorder.should_stop = lambda: False
    recorder.step()
    ((_, values),) = client.answers()
    film = read_film(values)
    assert film is not None
    assert film.lengths == (10,)
    assert len(run.films()) == 1


def test_no_episode_is_no_film() -> None:
    nothing = {name: np.zeros(spec.shape, spec.dtype) for name, spec in film_spec(2).items()}
    assert read_film(nothing) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"episodes": -1}, "record.episodes: must not be negative"),
        ({"length_secs": 0.0}, "record.length_secs: must be positive"),
        ({"wait_secs": -1.0}, "record.wait_secs: must not be negative"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        RecordConfig(**given)
    flags = {f"record.{name}": str(value) for name, value in given.items()}
    with pytest.raises(UserError, match=said):
        settings_from_flags("cartpole", flags)


@pytest.mark.slow
def test_a_process_of_its_own_films_cartpole(tmp_path: Path) -> None:
    films = {"episodes": 1, "length_secs": 0.5}
    run = train(tmp_path / "run", "CartPole-v1", engine="local", record=films)
    assert 1 <= len(told(run)) <= 3
    last = told(run)[-1]
    assert last["record/steps"] == told(run, "eval")[-1]["eval/steps"], "the newest, at the end"
    frame = pictures(run.films()[-1], tmp_path)[0]
    assert frame.shape == (400, 600, 3)
    assert (frame == 255).all(2).mean() > 0.9, "mostly white"
    assert (frame == 0).all(2).sum() > 1000, "the black cart"
    log = (run.logs / "recorder-0.log").read_text()
    assert "Traceback" not in log
