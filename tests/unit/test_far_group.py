"""A group with a member on another host computes what it computes in one memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from rookery.core.errors import RunFailed, UserError
from rookery.core.group import Group
from rookery.core.ports import End
from rookery.core.spec import Array, zeros
from rookery.transport.eventfd import EventFd
from rookery.transport.group_port import GroupPort

SIZE, NUM = 3, 40_000


class Cable:
    """Two members in one memory, the third over relays; a thread carries frames."""

    def __init__(self, num_bytes: int = NUM * 8) -> None:
        port = GroupPort("worker", SIZE, num_bytes, timeout_secs=20.0)
        arrays, wakeups = zeros(port.layout()), [EventFd.create() for _ in range(SIZE)]
        ends = [End(arrays, rank, 0, wakeups[rank], wakeups) for rank in range(SIZE)]
        own = port.for_one(SIZE - 1)
        memory, bell = zeros(own.layout()), EventFd.create()
        self.far = own.client(End(memory, 0, 0, bell, []))
        self.members: list[Group] = [port.client(end) for end in ends[:-1]]
        self.members.append(self.far)
        here, there = own.client_relay(memory), port.server_relay(ends[-1])
        assert here.sends == there.receives
        assert here.receives == there.sends
        self.over = False
        self.sent = 0

        def carry() -> None:
            while not self.over:
                if (frame := here.next()) is not None:
                    self.sent += sum(array.nbytes for array in frame.values())
                    there.accept({name: array.copy() for name, array in frame.items()})
                if (frame := there.next()) is not None:
                    here.accept({name: array.copy() for name, array in frame.items()})
                    bell.notify()

        self.thread = threading.Thread(target=carry, daemon=True)
        self.thread.start()

    def all_do(self, work: Callable[[Group], object]) -> list[object]:
        found: list[object] = [None] * SIZE

        def run(rank: int) -> None:
            found[rank] = work(self.members[rank])

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(SIZE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
            assert not thread.is_alive()
        return found

    def end(self) -> None:
        self.over = True
        self.thread.join()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num", [1, 300, NUM])
def test_all_have_the_sum_to_the_bit(num: int, dtype: torch.dtype) -> None:
    cable = Cable()
    given = [torch.randn(num, dtype=dtype) for _ in range(SIZE)]
    wanted = (given[0] + given[1]) + given[2]
    for _ in range(3):  # slots are used in turn
        sums = cable.all_do(lambda member: member.sum_(given[member.rank].clone()))
        assert all(torch.equal(total, wanted) for total in sums)  # type: ignore[arg-type]
    cable.end()


def test_rows_go_to_the_first_and_its_values_to_all() -> None:
    cable = Cable()
    rows = [np.full((rank + 1, 3), float(rank)) for rank in range(SIZE)]
    gathered = cable.all_do(lambda member: member.gather(rows[member.rank]))
    first: list[Array] = gathered[0]  # type: ignore[assignment]
    for found, wanted in zip(first, rows, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert gathered[1:] == [[], []]
    assert cable.all_do(lambda member: len(member.gather(np.empty((0, 3)))))[0] == SIZE
    told = cable.all_do(lambda member: member.first(np.array([float(member.rank + 7)])).tolist())
    assert told == [[7.0]] * SIZE
    assert cable.sent < 50_000, "small things are sent small"
    cable.end()


def test_a_member_without_an_answer_says_so() -> None:
    port = GroupPort("worker", 2, 64, timeout_secs=0.01).for_one(1)
    member = port.client(End(zeros(port.layout()), 0, 0, EventFd.create(), []))
    with pytest.raises(RunFailed, match="the group at the head did not answer"):
        member.first(np.zeros(1))


def test_what_a_host_may_not_send_is_refused() -> None:
    port = GroupPort("worker", 2, 64)
    wakeups = [EventFd.create(), EventFd.create()]
    stand_in = port.server_relay(End(zeros(port.layout()), 1, 0, wakeups[1], wakeups))
    with pytest.raises((KeyError, ValueError)):
        stand_in.accept({"ask": np.array([1, 0, 1 << 40, 4])})
    stand_in.accept({"ask": np.array([1, 2, 8, 8]), "small": np.zeros(4096, np.uint8)})
    with pytest.raises(ValueError, match="before it was answered"):
        stand_in.accept({"ask": np.array([2, 2, 8, 8]), "small": np.zeros(4096, np.uint8)})
    with pytest.raises(UserError):
        port.client_relay({})
