"""What actors leave to those after them: in shared memory, and in checkpoints."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from rookery.core.errors import UserError
from rookery.core.spec import Arrays, ArraySpec
from rookery.engines.inherited import bequest_of, bequest_part, read_bequests
from rookery.envs.serial import SerialVector
from rookery.replay.table import Table
from rookery.runs.checkpoint_files import State
from rookery.runs.find import find_checkpoint, load_checkpoint
from rookery.transport.bequests import Bequests, bequest_specs
from rookery.transport.shared_memory import SharedArena

SPECS = {
    "window": ArraySpec((3, 400), np.dtype(np.int64)),
    "mean": ArraySpec((), np.dtype(np.float64)),
}


def allocated(num_actors: int = 2) -> Bequests:
    return Bequests(SharedArena.create(bequest_specs(SPECS, num_actors)).arrays)


def bequest(value: int) -> Arrays:
    return {"window": np.full((3, 400), value), "mean": np.array(float(value))}


def values_in(found: Arrays | None) -> set[float]:
    assert found is not None
    return {float(value) for array in found.values() for value in np.unique(array)}


def test_what_was_left_last_is_read_by_whoever_is_next() -> None:
    bequests = allocated()
    assert bequests.read(0) is None
    for value in (1, 2, 3):
        bequests.leave(1, bequest(value))
        assert values_in(bequests.read(1)) == {value}
    assert bequests.read(0) is None


def test_what_is_read_is_a_copy() -> None:
    bequests = allocated()
    bequests.leave(0, bequest(1))
    found = bequests.read(0)
    bequests.leave(0, bequest(2))
    bequests.leave(0, bequest(3))
    assert values_in(found) == {1}


def test_who_dies_while_writing_leaves_what_was_there() -> None:
    bequests = allocated()
    bequests.leave(0, bequest(1))
    with pytest.raises(KeyError):
        bequests.leave(0, {"window": np.full((3, 400), 2)})
    assert values_in(bequests.read(0)) == {1}


def test_a_reader_never_sees_two_writings_at_once() -> None:
    arena = SharedArena.create(bequest_specs(SPECS, 1))
    bequests = Bequests(arena.arrays)
    bequests.leave(0, bequest(0))
    context = multiprocessing.get_context("fork")
    writer = context.Process(target=_write_for_ever, args=(bequests,), daemon=True)
    writer.start()
    try:
        seen = set()
        for _ in range(3000):
            found = values_in(bequests.read(0))
            assert len(found) == 1, "torn"
            seen |= found
        assert len(seen) > 10, "the writer did not write meanwhile"
    finally:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    assert len(values_in(bequests.read(0))) == 1


def _write_for_ever(bequests: Bequests) -> None:
    value = 0
    while True:
        value += 1
        bequests.leave(0, bequest(value))


def test_another_kind_of_bequest_does_not_fit() -> None:
    bequests = allocated()
    assert bequests.fits(bequest(1))
    assert bequests.fits(bequest(1) | {"more": np.zeros(3)}), "a whole state has more in it"
    assert not bequests.fits({"window": np.zeros((3, 400))})
    assert not bequests.fits(bequest(1) | {"window": np.zeros((4, 400))})


def test_a_checkpoint_keeps_them_by_actor() -> None:
    parts = bequest_part({0: bequest(1), 12: bequest(2)})
    assert values_in(bequest_of(parts, 12)) == {2}
    assert values_in(bequest_of(parts, 0)) == {1}
    assert bequest_of(parts, 1) == {}
    assert bequest_part({}) == {} == bequest_part({0: {}})
    whole = State({"curiosity/mean": np.array(3.0), "env/position": np.zeros(2)})
    assert values_in(bequest_of({"actor-1": whole}, 1)) == {3}


def trained(path: Path, **given: Any) -> Path:
    """A run of two environments with episodes of ten steps."""
    learn = {"batch_size": 8, "capacity_steps": 700, "learning_starts": 50}
    novelty = {"capacity": 12, "embedding_features": 4, "distilled_features": 4}
    return rookery.train(
        "tests.faults.fault_worlds:Plain",
        run=path / "run",
        algo="agent57",
        steps=200,
        envs=2,
        env={"backend": "serial"},
        policy={"hidden": [8]},
        eval={"episodes": 0, "every_steps": None},
        agent57=learn
        | {"length": 1, "burn_in": 0, "novelty": novelty, "family": {"num_arms": 3, "window": 50}},
        **given,
    ).path


@pytest.mark.parametrize("saved", [True, False])
def test_actors_that_begin_new_episodes_keep_their_arms(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    saved: bool,
) -> None:
    """Under ``inline`` too, whether their environments could not be saved or not be restored."""
    if not saved:
        monkeypatch.setattr(SerialVector, "state_dict", lambda self: None)
    run = trained(tmp_path)
    assert ("actor-0" in load_checkpoint(run).parts) == saved

    def unfit(self: SerialVector, *args: object) -> None:
        raise UserError("no")

    monkeypatch.setattr(SerialVector, "load_state_dict", unfit)
    left: list[list[int]] = []
    monkeypatch.setattr(Table, "abandon", lambda self, streams: left.append(streams.tolist()))
    before = read_bequests(find_checkpoint(run), 1)[0]
    rookery.resume(run, steps=240)
    assert left == [[0, 1]], "no sequence joins their old episodes and their new ones"
    assert "actor-0 begins new episodes" in caplog.text
    after = read_bequests(find_checkpoint(run), 1)[0]
    assert after["moments"][0] == before["moments"][0] + 40, "of all that was ever judged"
    played = [np.count_nonzero(each["arms/played"] >= 0) for each in (before, after)]
    assert played == [20, 24], "each episode has ten steps"


def test_the_arms_of_others_are_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trained(tmp_path, replay={"save_replay": False})
    before = read_bequests(find_checkpoint(run), 1)[0]
    rookery.resume(run, steps=280, env={"num_envs": 4})
    assert "actor-0 knows nothing of what the one before it learned: it had other" in caplog.text
    after = read_bequests(find_checkpoint(run), 1)[0]
    assert (len(before["arms/played"]), len(after["arms/played"])) == (2, 4)
    assert np.count_nonzero(after["arms/played"] >= 0) == 80 // 10, "only its own"
