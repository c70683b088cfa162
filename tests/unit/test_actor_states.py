"""What actors leave to those after them: in shared memory, and in checkpoints."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rookery
from rookery.carriers.shared_memory import SharedArena
from rookery.core.errors import UserError
from rookery.core.spec import Arrays, ArraySpec
from rookery.envs.serial import SerialVector
from rookery.replay.table import Table
from rookery.roles.replay_learner import ReplayLearner, carried_over
from rookery.runs.checkpoint_files import State
from rookery.runs.find import load_checkpoint
from rookery.transport.actor_states import ActorStates, ActorStatesPort

SPECS = {
    "window": ArraySpec((3, 400), np.dtype(np.int64)),
    "mean": ArraySpec((), np.dtype(np.float64)),
}


def allocated(num_actors: int = 2) -> ActorStates:
    return ActorStates(SharedArena.create(ActorStatesPort(SPECS, num_actors).layout()).arrays)


def state(value: int) -> Arrays:
    return {"window": np.full((3, 400), value), "mean": np.array(float(value))}


def values_in(found: Arrays | None) -> set[float]:
    assert found is not None
    return {float(value) for array in found.values() for value in np.unique(array)}


def test_what_was_left_last_is_read_by_whoever_is_next() -> None:
    states = allocated()
    assert states.read(0) is None
    for value in (1, 2, 3):
        states.write(1, state(value))
        assert values_in(states.read(1)) == {value}
    assert states.read(0) is None


def test_what_is_read_is_a_copy() -> None:
    states = allocated()
    states.write(0, state(1))
    found = states.read(0)
    states.write(0, state(2))
    states.write(0, state(3))
    assert values_in(found) == {1}


def test_who_dies_while_writing_leaves_what_was_there() -> None:
    states = allocated()
    states.write(0, state(1))
    states.values["window"][0, (states.turns[0] + 1) % 2] = 2  # and not the rest, nor the count
    assert values_in(states.read(0)) == {1}


def test_a_reader_never_sees_two_writings_at_once() -> None:
    states = allocated(1)
    states.write(0, state(0))
    context = multiprocessing.get_context("fork")
    writer = context.Process(target=_write_for_ever, args=(states,), daemon=True)
    writer.start()
    try:
        seen = set()
        for _ in range(3000):
            found = values_in(states.read(0))
            assert len(found) == 1, "torn"
            seen |= found
        assert len(seen) > 10, "the writer did not write meanwhile"
    finally:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    assert len(values_in(states.read(0))) == 1


def _write_for_ever(states: ActorStates) -> None:
    value = 0
    while True:
        value += 1
        states.write(0, state(value))


def test_another_kind_of_state_does_not_fit() -> None:
    states = allocated()
    assert states.write(0, state(1))
    assert states.write(0, state(2) | {"more": np.zeros(3)}), "a whole state has more in it"
    assert not states.write(0, {"window": np.zeros((3, 400))})
    assert not states.write(0, state(1) | {"window": np.zeros((4, 400))})
    assert values_in(states.read(0)) == {2}, "what does not fit is not written"


def part_of(states: ActorStates | None) -> dict[str, State]:
    """What a learner's checkpoint keeps of the actors' states."""
    learner: Any = SimpleNamespace(snapshots=None, actor_states=states)
    return ReplayLearner.save_beside(learner)


def test_a_checkpoint_keeps_them_by_actor() -> None:
    states = allocated(13)
    assert part_of(states) == {} == part_of(None)
    states.write(0, state(1))
    states.write(12, state(2))
    parts = part_of(states)
    assert values_in(carried_over(parts, 12)) == {2}
    assert values_in(carried_over(parts, 0)) == {1}
    assert carried_over(parts, 1) == {}
    whole = State({"curiosity/mean": np.array(3.0), "env/position": np.zeros(2)})
    assert values_in(carried_over({"actor-1": whole}, 1)) == {3}


def test_checkpoints_of_old_are_read() -> None:
    """Which called them bequests."""
    parts = part_of(allocated_with(7))
    assert values_in(carried_over({"bequests": parts["actor_states"]}, 0)) == {7}


def allocated_with(value: int) -> ActorStates:
    states = allocated()
    states.write(0, state(value))
    return states


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


@pytest.mark.slow
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
    before = carried_over(load_checkpoint(run).parts, 0)
    rookery.resume(run, steps=240)
    assert left == [[0, 1]], "no sequence joins their old episodes and their new ones"
    assert "actor-0 begins new episodes" in caplog.text
    after = carried_over(load_checkpoint(run).parts, 0)
    assert after["moments"][0] == before["moments"][0] + 40, "of all that was ever judged"
    played = [np.count_nonzero(each["arms/played"] >= 0) for each in (before, after)]
    assert played == [20, 24], "each episode has ten steps"


def test_the_arms_of_others_are_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = trained(tmp_path, replay={"save_replay": False})
    before = carried_over(load_checkpoint(run).parts, 0)
    rookery.resume(run, steps=280, env={"num_envs": 4})
    assert "actor-0 knows nothing of what actors learned before: its are other arms" in caplog.text
    after = carried_over(load_checkpoint(run).parts, 0)
    assert (len(before["arms/played"]), len(after["arms/played"])) == (2, 4)
    assert np.count_nonzero(after["arms/played"] >= 0) == 80 // 10, "only its own"
