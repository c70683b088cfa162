"""Weights along a run: few files whatever its length, and nothing beyond what was resumed."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import rookery
from rookery.core.errors import UserError
from rookery.runs.find import load_checkpoint
from rookery.runs.history import History
from rookery.runs.tensorfile import SavedArrays

TINY = {
    "envs": 4,
    "ppo": {"rollout_steps": 16},
    "policy": {"hidden": [8]},
    "stop_at": None,
    "eval": {"episodes": 0},
}


def weights(value: float = 0.0) -> SavedArrays:
    return {"w": torch.full((3,), value)}


def play(history: History, until: int, start: int = 0) -> None:
    """A run with an update each half second, a step each second."""
    for half in range(2 * start, 2 * until + 1):
        history.note(half / 2, half, lambda half=half: weights(half))  # type: ignore[misc]


@pytest.mark.parametrize("until", [3, 22, 23, 100, 1800, 20_000])
@pytest.mark.parametrize("keep", [2, 24])
def test_few_files_at_even_distances(until: int, keep: int, tmp_path: Path) -> None:
    history = History(tmp_path / "history", keep)
    play(history, until)
    history.note(until + 0.1, 2 * until + 1, weights, end=True)
    found = history.snapshots()
    assert len(found) <= keep
    assert found[0].wall_secs == 0.0
    assert found[-1].wall_secs == until + 0.1
    if keep == 24:
        gaps = [b.wall_secs - a.wall_secs for a, b in pairwise(found)]
        assert len(set(gaps[:-1])) == 1, "evenly spaced but for the end"
        assert len(found) >= min(until, 12)
    for snapshot in found[:-1]:
        assert torch.equal(torch.as_tensor(snapshot.load()["w"]), torch.full((3,), snapshot.steps))


def test_a_new_process_goes_on_where_the_last_was_killed(tmp_path: Path) -> None:
    straight, halves = History(tmp_path / "straight"), History(tmp_path / "halves")
    play(straight, 200)
    play(halves, 130)
    (tmp_path / "halves" / ".tmp-half-written").write_bytes(b"half")
    second = History(tmp_path / "halves")
    second.cut(2 * 90)
    assert second.snapshots()[-1].wall_secs <= 90
    assert not (tmp_path / "halves" / ".tmp-half-written").exists()
    play(second, 200, start=90)
    names = [sorted(path.name for path in h.directory.iterdir()) for h in (straight, second)]
    assert names[0] == names[1]


def test_the_nearest(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    play(history, 20)
    assert history.nearest(0).wall_secs == 0
    assert history.nearest(7.4).wall_secs == 7
    assert history.nearest(7.6).wall_secs == 8
    assert history.nearest(1e6).wall_secs == 20


def test_none_is_kept_if_none_is_wanted(tmp_path: Path) -> None:
    history = History(tmp_path / "history", keep=0)
    play(history, 20)
    assert not history.directory.exists()
    for wrong in (-1, 1):
        with pytest.raises(UserError, match=r"checkpoint\.history"):
            rookery.train("CartPole-v1", run=tmp_path / "run", checkpoint={"history": wrong})


def test_what_cannot_be_written_does_not_stop_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "history").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        play(History(tmp_path / "history"), 20)
    (record,) = caplog.records
    assert "keeps no history" in record.getMessage()


def test_a_damaged_snapshot_is_one_line(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    play(history, 3)
    history.snapshots()[1].path.write_bytes(b"junk")
    with pytest.raises(UserError, match="damaged"):
        history.nearest(1.0).load()


def first_and_last(run: Path) -> tuple[int, int]:
    found = History(run / "history").snapshots()
    return found[0].steps, found[-1].steps


@pytest.mark.slow
def test_a_run_keeps_its_first_and_its_last_weights(tmp_path: Path) -> None:
    run = rookery.train("CartPole-v1", run=tmp_path / "run", steps=300, **TINY)
    assert first_and_last(run.path) == (0, run.finish.steps)
    last = History(run.path / "history").snapshots()[-1].load()
    saved = load_checkpoint(run.path, "latest", ["weights"]).parts["weights"].arrays
    assert sorted(last) == sorted(saved)
    for name, array in saved.items():
        np.testing.assert_array_equal(np.asarray(last[name]), np.asarray(array))
    more = rookery.resume(run.path, steps=600)
    assert more.finish.steps > run.finish.steps
    assert first_and_last(run.path) == (0, more.finish.steps)


@pytest.mark.slow
def test_resuming_an_older_checkpoint_forgets_the_rest(tmp_path: Path) -> None:
    run = rookery.train("CartPole-v1", run=tmp_path / "run", steps=600, save_every=200, **TINY)
    older = sorted((run.path / "checkpoints").glob("0*"))[0]
    assert int(older.name) < 600
    history = History(run.path / "history")
    history.note(999.0, 10_000, weights, end=True)
    assert first_and_last(run.path) == (0, 10_000)
    again = rookery.resume(older, steps=500)
    assert first_and_last(run.path) == (0, again.finish.steps)


@pytest.mark.slow
def test_under_local_the_learner_keeps_it(tmp_path: Path) -> None:
    run = rookery.train("CartPole-v1", run=tmp_path / "run", steps=300, engine="local", **TINY)
    assert first_and_last(run.path) == (0, run.finish.steps)
    rookery.resume(run.path, steps=600)
    assert first_and_last(run.path)[0] == 0
    assert first_and_last(run.path)[1] >= 600
