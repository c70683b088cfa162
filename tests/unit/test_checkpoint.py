"""The store of a run's checkpoints: which one is meant, which ones stay, and the fallback."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rookery.core.errors import UserError
from rookery.runs import checkpoint_files
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import State
from rookery.runs.tensorfile import DamagedError
from tests.unit.checkpoint_parts import flip_bit, names, parts


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run" / "checkpoints", durable=False)


# ---- which checkpoint


def test_load_by_steps_name_and_path(store: CheckpointStore) -> None:
    for steps in (10, 20, 30):
        store.save(steps, parts(steps))
    store.mark_best(20, {"return_mean": 5.0})
    assert store.steps_available() == [10, 20, 30]
    assert store.load().steps == 30
    assert store.load(10).parts["counters"].data == {"updates": 10}
    assert store.load("20").steps == 20
    assert store.load("best").steps == 20
    assert store.load(store.directory / "000000000010").steps == 10


def test_what_is_not_there_is_said(store: CheckpointStore) -> None:
    assert store.steps_available() == []
    assert store.best_score() is None
    with pytest.raises(UserError, match=r"no checkpoint in .* yet"):
        store.load()
    store.save(10, parts())
    with pytest.raises(UserError, match=r"no checkpoint of 11 steps in .*there are 10"):
        store.load(11)
    with pytest.raises(UserError, match="unknown checkpoint 'newest'; use latest, best or"):
        store.load("newest")
    with pytest.raises(UserError, match=r"no best checkpoint .* --checkpoint latest"):
        store.load("best")


def test_best_is_a_link_and_a_score(store: CheckpointStore) -> None:
    store.save(10, parts())
    store.mark_best(10, {"return_mean": 5.5, "episodes": 10})
    assert os.readlink(store.directory / "best") == "000000000010"
    assert store.best_score() == {"return_mean": 5.5, "episodes": 10}
    store.save(20, parts())
    store.mark_best(20, {"return_mean": 6.0})
    assert store.load("best").steps == 20
    assert store.best_score() == {"return_mean": 6.0}
    with pytest.raises(UserError, match="no such checkpoint"):
        store.mark_best(30, {"return_mean": 7.0})


def test_latest_is_the_last_saved_also_after_going_back(store: CheckpointStore) -> None:
    for steps in (10, 20, 30, 40, 50):
        store.save(steps, parts())
    store.save(15, parts())  # a run resumed from 10
    assert store.load().steps == 15
    assert store.find() == store.directory / "000000000015"
    assert store.steps_available() == [15, 20, 30, 40, 50]


# ---- pruning


def test_prune_keeps_newest_best_and_protected(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2, durable=False)
    store.save(1, parts())
    store.mark_best(1, {"score": 1})
    store.save(2, parts())
    store.protect(2)
    for steps in (3, 4, 5):
        store.save(steps, parts())
    assert store.steps_available() == [1, 2, 4, 5]
    store.release(2)
    store.save(6, parts())
    assert store.steps_available() == [1, 5, 6]
    store.mark_best(6, {"score": 2})
    store.save(7, parts())
    assert store.steps_available() == [6, 7]
    assert not [name for name in names(store) if name.startswith(".")]


def test_prune_leaves_what_is_not_ours(tmp_path: Path) -> None:
    foreign = tmp_path / "000000000001"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    store = CheckpointStore(tmp_path, keep=1, durable=False)
    store.save(2, parts())
    store.save(3, parts())
    assert (foreign / "notes.txt").read_text() == "mine"
    assert store.steps_available() == [1, 3]


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keep=0"):
        CheckpointStore(tmp_path, keep=0)


# ---- damage


def damage_truncate(path: Path) -> None:
    os.truncate(path / "weights.safetensors", 40)


def damage_flip(path: Path) -> None:
    flip_bit(path / "weights.safetensors", 8 * 20)


def damage_missing_file(path: Path) -> None:
    (path / "weights.safetensors").unlink()


def damage_missing_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def damage_torn_manifest(path: Path) -> None:
    os.truncate(path / "manifest.json", 30)


def damage_foreign(path: Path) -> None:
    (path / "manifest.json").write_text('{"format": "other"}')


def damage_newer_version(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"version": 1', '"version": 99'))


def damage_other_steps(path: Path) -> None:
    shutil.copy(path.parent / "000000000010" / "manifest.json", path / "manifest.json")


DAMAGES = [
    (damage_truncate, r"weights\.safetensors has 40 bytes instead of"),
    (damage_flip, r"weights\.safetensors was altered"),
    (damage_missing_file, r"weights\.safetensors is missing"),
    (damage_missing_manifest, r"manifest\.json is missing"),
    (damage_torn_manifest, r"manifest\.json is not valid JSON"),
    (damage_foreign, r"manifest\.json is not of a Rookery checkpoint"),
    (damage_newer_version, r"format version 99"),
    (damage_other_steps, r"another checkpoint"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_damaged_latest_falls_back_and_says_so(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture, damage: Any, words: str
) -> None:
    for steps in (10, 20, 30):
        store.save(steps, parts())
    damage(store.directory / "000000000030")
    with caplog.at_level(logging.WARNING):
        assert store.load().steps == 20
    assert len(caplog.messages) == 1
    assert "000000000030" in caplog.text
    assert "000000000020" in caplog.text
    with pytest.raises(DamagedError, match=words) as explicit:
        store.load(30)
    message = str(explicit.value)
    assert "000000000030" in message
    assert "--checkpoint latest" in message
    assert "\n" not in message


def test_damaged_best_is_an_error(store: CheckpointStore) -> None:
    path = store.save(10, parts())
    store.mark_best(10, {"score": 1})
    store.save(20, parts())
    damage_truncate(path)
    with pytest.raises(DamagedError, match=r"weights\.safetensors.*--checkpoint latest"):
        store.load("best")
    shutil.rmtree(path)
    with pytest.raises(UserError, match=r"best checkpoint .* is missing"):
        store.load("best")


def test_none_valid_is_an_error(store: CheckpointStore) -> None:
    for steps in (10, 20):
        damage_truncate(store.save(steps, parts()))
    with pytest.raises(UserError, match=r"no valid checkpoint in .*0020 .*0010 ") as error:
        store.load()
    assert "\n" not in str(error.value)


def test_a_running_trainer_prunes_while_we_read(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(10, parts())
    trainer = CheckpointStore(store.directory, keep=1, durable=False)
    real = checkpoint_files.read_part
    calls = []

    def read_part(directory: Path, *rest: Any) -> State:
        if not calls:
            calls.append(directory)
            trainer.save(20, parts())  # removes 10
        return real(directory, *rest)

    monkeypatch.setattr(checkpoint_files, "read_part", read_part)
    assert store.load().steps == 20
    assert caplog.messages == []
