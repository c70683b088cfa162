"""Groups that compute as one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rookery.core.errors import RunFailed
from rookery.core.group import Alone, Group
from rookery.core.ports import End
from rookery.core.spec import Arrays, zeros
from rookery.transport.eventfd import EventFd
from rookery.transport.shared_group import SMALL_BYTES, SharedGroup, group_specs


def member(arrays: Arrays, rank: int, wakeups: list[EventFd], **given: Any) -> SharedGroup:
    return SharedGroup(arrays, End(arrays, rank, 0, wakeups[rank], wakeups), **given)


def together(size: int, play: Callable[[Group], Any], num_bytes: int = 1 << 20) -> list[Any]:
    """What ``play`` gives for each member of a group, all at once."""
    arrays, wakeups = zeros(group_specs(size, num_bytes)), [EventFd.create() for _ in range(size)]
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        results[rank] = play(member(arrays, rank, wakeups, timeout_secs=30.0))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 7, SMALL_BYTES // 4, SMALL_BYTES // 4 + 1, 100_003])
def test_sums_are_right_and_the_same_bits_everywhere(size: int, count: int) -> None:
    def vector(rank: int, turn: int) -> torch.Tensor:
        rng = np.random.default_rng([rank, turn])
        return torch.from_numpy(rng.normal(size=count).astype(np.float32))

    def play(group: Group) -> list[torch.Tensor]:
        return [group.sum_(vector(group.rank, turn)) for turn in range(12)]

    results = together(size, play)
    for turn in range(12):
        expected = sum(vector(rank, turn).double() for rank in range(size))
        torch.testing.assert_close(results[0][turn].double(), expected, atol=1e-5, rtol=1e-5)
        for other in results[1:]:
            assert torch.equal(other[turn], results[0][turn])


def test_calls_of_every_kind_follow_each_other_without_mixing() -> None:
    sizes = [1, 40_000, 3, 20_000, 5]

    def play(group: Group) -> list[Any]:
        told: list[Any] = []
        for turn in range(60):
            count = sizes[turn % len(sizes)]
            value = torch.full((count,), float(group.rank + turn), dtype=torch.float64)
            told.append(group.sum_(value)[-1].item())
            told.append(group.first(np.array([group.rank + 100.0 + turn, turn])).tolist())
            rows = np.full(((group.rank + turn) % 4, 3), float(group.rank))
            told.append([gathered.tolist() for gathered in group.gather(rows)])
        return told

    results = together(3, play)
    for rank, told in enumerate(results):
        for turn in range(60):
            total, first, gathered = told[3 * turn : 3 * turn + 3]
            assert total == 3 * turn + 3
            assert first == [100.0 + turn, turn]
            expected = [[[r] * 3] * ((r + turn) % 4) for r in range(3)]
            assert gathered == (expected if rank == 0 else [])


def test_whoever_does_not_come_is_named() -> None:
    arrays, wakeups = zeros(group_specs(2, 64)), [EventFd.create(), EventFd.create()]
    group = member(arrays, 0, wakeups, timeout_secs=0.05)
    with pytest.raises(RunFailed, match=r"worker-0 waited 0\.05 s for worker-1"):
        group.sum_(torch.ones(3))


def test_what_does_not_fit_is_refused() -> None:
    arrays, wakeups = zeros(group_specs(1, 64)), [EventFd.create()]
    with pytest.raises(ValueError, match="do not fit"):
        member(arrays, 0, wakeups).sum_(torch.ones(17))


def test_alone() -> None:
    alone = Alone()
    assert alone.sum_(torch.ones(2)).tolist() == [1.0, 1.0]
    assert [rows.tolist() for rows in alone.gather(np.ones((1, 2)))] == [[[1.0, 1.0]]]
    assert alone.first(np.array([4.0])).tolist() == [4.0]
