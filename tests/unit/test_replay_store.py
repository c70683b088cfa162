"""Snapshots of replay on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rookery.core.errors import UserError
from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import ArraySpec
from rookery.replay.sequences import SequenceConfig
from rookery.replay.settings import TableConfig
from rookery.replay.store import ReplayStore
from rookery.replay.table import Table

STREAMS, WIDTH = 8, 32
SPEC = StepSpec(
    obs={"obs": ArraySpec((WIDTH,), np.dtype(np.float32))}, action=ArraySpec((), np.dtype(np.int64))
)


def table(capacity: int = 40_000) -> Table:
    sequence = SequenceConfig(n_step=2)
    return Table(TableConfig(capacity_steps=capacity, num_streams=STREAMS, sequence=sequence), SPEC)


def fill(into: Table, count: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        into.put(
            Steps(
                stream=np.arange(STREAMS),
                obs={"obs": rng.random((STREAMS, WIDTH), np.float32)},
                action=rng.integers(0, 3, STREAMS),
                reward=rng.random(STREAMS),
                terminated=rng.random(STREAMS) < 0.02,
                truncated=np.zeros(STREAMS, np.bool_),
                final_obs={"obs": rng.random((STREAMS, WIDTH), np.float32)},
            )
        )


def same(one: Table, other: Table) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    equal = all(np.array_equal(mine[0][name], theirs[0][name]) for name in mine[0])
    return equal and mine[1] == theirs[1]


def restored(store: ReplayStore, steps: int) -> Table:
    arrays, data, _ = store.load(steps)
    found = table()
    found.load_state_dict(arrays, data)
    return found


def test_a_snapshot_is_the_table_and_goes_on_like_it(tmp_path: Path) -> None:
    store, mine = ReplayStore(tmp_path), table()
    fill(mine, 300)
    store.save(300, mine, {"note": 5})
    theirs = restored(ReplayStore(tmp_path), 300)
    assert same(mine, theirs)
    assert ReplayStore(tmp_path).load(300)[2] == {"note": 5}
    for both in (mine, theirs):
        fill(both, 200, seed=1)
    assert same(mine, theirs)


def test_snapshots_of_another_future_are_not_taken(tmp_path: Path) -> None:
    store, mine = ReplayStore(tmp_path), table()
    assert store.newest(until=1_000) is None
    for steps in (100, 200, 300):
        fill(mine, 10)
        store.save(steps, mine, {})
    assert store.newest(until=250) == 200, "a run that went back to 200 does not know of 300"
    assert store.newest(until=200, since=[300]) == 300, "unless it wrote that itself"
    assert store.newest(until=200, since=[400]) == 200, "nor is there what was not written"
    assert store.newest(until=50) is None


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    store, mine = ReplayStore(tmp_path), table()
    (tmp_path / ".tmp-rows.0.npy-123-abcd").write_bytes(b"half")
    store.save(1, mine, {})
    store.prune([1])
    assert not list(tmp_path.glob(".tmp-*"))
    assert store.available() == [1]


@pytest.mark.slow
def test_only_what_changed_is_written_again(tmp_path: Path) -> None:
    store, mine = ReplayStore(tmp_path), table()
    fill(mine, 4000)
    store.save(1, mine, {})
    first = store.written_bytes
    fill(mine, 40, seed=1)
    store.save(2, mine, {})
    rows = list(tmp_path.glob("rows.*.npy"))
    assert store.written_bytes < 0.6 * first
    store.prune([2])
    assert len(list(tmp_path.glob("rows.*.npy"))) < len(rows), "the first had some of its own"
    assert store.available() == [2]
    assert same(mine, restored(store, 2))


@pytest.mark.slow
def test_a_store_that_loaded_builds_on_what_it_loaded(tmp_path: Path) -> None:
    store, mine = ReplayStore(tmp_path), table()
    fill(mine, 4000)
    store.save(1, mine, {})
    first = store.written_bytes
    again = ReplayStore(tmp_path)
    theirs = restored(again, 1)
    fill(theirs, 40, seed=2)
    again.save(2, theirs, {})
    assert again.written_bytes < 0.6 * first
    again.prune([1, 2])
    assert same(mine, restored(ReplayStore(tmp_path), 1)), "what the first had is still there"
    assert same(theirs, restored(ReplayStore(tmp_path), 2))


def test_damage_is_noticed(tmp_path: Path) -> None:
    store, mine = ReplayStore(tmp_path), table()
    fill(mine, 50)
    store.save(1, mine, {})
    victim = max(tmp_path.glob("rows.*.npy"), key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"is damaged; remove .*, and a resumed run fills"):
        ReplayStore(tmp_path).load(1)
    victim.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        ReplayStore(tmp_path).load(1)
    with pytest.raises(UserError, match="cannot be read"):
        ReplayStore(tmp_path).load(7)


def test_a_snapshot_of_other_observations_is_refused(tmp_path: Path) -> None:
    store, mine = ReplayStore(tmp_path), table()
    fill(mine, 50)
    store.save(1, mine, {})
    arrays, data, _ = store.load(1)
    spec = StepSpec(
        obs={"obs": ArraySpec((5,), np.dtype(np.float32))}, action=ArraySpec((), np.dtype(np.int64))
    )
    other = Table(TableConfig(capacity_steps=40_000, num_streams=STREAMS), spec)
    with pytest.raises(UserError, match="replay"):
        other.load_state_dict(arrays, data)
