"""From what a user typed to a checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rookery.core.errors import UserError
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.find import find_checkpoint, load_checkpoint
from tests.unit.checkpoint_parts import parts


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run" / "checkpoints", durable=False)


def test_find_checkpoint_from_run_checkpoints_or_one_of_them(store: CheckpointStore) -> None:
    for steps in (10, 20):
        store.save(steps, parts())
    store.mark_best(10, {"score": 1})
    run = store.directory.parent
    ten, twenty = (store.directory / name for name in ("000000000010", "000000000020"))
    assert find_checkpoint(run, None) == twenty
    assert find_checkpoint(run, "best") == ten
    assert find_checkpoint(run, "10") == ten
    assert find_checkpoint(store.directory, None) == twenty
    assert find_checkpoint(ten, None) == ten
    assert find_checkpoint(store.directory / "best", None) == ten
    assert find_checkpoint(ten, "latest") == twenty
    assert load_checkpoint(run).steps == 20
    assert load_checkpoint(ten).steps == 10
    assert load_checkpoint(run, "best", ["counters"]).parts["counters"].data == {"updates": 1}
    os.truncate(twenty / "weights.safetensors", 5)
    assert find_checkpoint(run, None) == ten


def test_a_copied_checkpoint_is_a_checkpoint(store: CheckpointStore, tmp_path: Path) -> None:
    shutil.copytree(store.save(10, parts()), tmp_path / "my-agent")
    assert load_checkpoint(tmp_path / "my-agent").steps == 10


def test_not_a_run_names_the_near_ones(tmp_path: Path) -> None:
    for name in ("ppo-cartpole", "a2c-snake"):
        CheckpointStore(tmp_path / name / "checkpoints", durable=False).save(1, parts())
    (tmp_path / "ppo-cart").mkdir()
    with pytest.raises(UserError, match=r"is not a run directory; did you mean 'ppo-cartpole'\?"):
        find_checkpoint(tmp_path / "ppo-cart", None)
    with pytest.raises(UserError, match=r"does not exist; did you mean 'a2c-snake'\?"):
        find_checkpoint(tmp_path / "a2c-snak", "best")
    with pytest.raises(UserError, match="does not exist; `rookery runs` lists the runs"):
        find_checkpoint(tmp_path / "zzz", None)


def test_run_without_checkpoints_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(UserError, match="no checkpoint in"):
        find_checkpoint(tmp_path, None)
