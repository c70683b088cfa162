"""A pump takes what relays have to say, in the right order, and gives them what comes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rookery.carriers import pump as pump_module
from rookery.carriers.pump import LOOK_SECS, Pump
from rookery.carriers.wire import WireError
from rookery.core.spec import Arrays, ArraySpec
from rookery.transport.eventfd import EventFd

INT = np.dtype(np.int64)
SPEC = {"n": ArraySpec((), INT)}


class Numbers:
    """A relay that gives numbers and keeps those it is told."""

    sends = receives = SPEC

    def __init__(self, *pending: int, on_next: Callable[[], None] = lambda: None) -> None:
        self.pending, self.told, self.on_next = list(pending), list[int](), on_next

    def next(self) -> Arrays | None:
        self.on_next()
        return {"n": np.array(self.pending.pop(0))} if self.pending else None

    def accept(self, frame: Arrays) -> None:
        number = int(frame["n"])
        if number < 0:
            raise RuntimeError("no room")
        self.told.append(number)


def taken(pump: Pump, secs: float = 0.0) -> list[tuple[int, int]]:
    return [(number, int(frame["n"])) for number, frame in pump.take(secs)]


@pytest.fixture
def wakeup() -> Iterator[EventFd]:
    found = EventFd.create()
    yield found
    found.close()


def soon(act: Callable[[], Any], secs: float = 0.05) -> threading.Thread:
    thread = threading.Timer(secs, act)
    thread.start()
    return thread


def test_cells_go_first_and_streams_take_turns() -> None:
    pump = Pump()
    pump.add(0, Numbers(1, 2, 3), first=False)
    pump.add(1, Numbers(10), first=False)
    pump.add(2, Numbers(20, 21), first=True)
    assert taken(pump) == [(2, 20), (2, 21), (0, 1), (1, 10), (0, 2), (0, 3)]
    assert taken(pump) == []


def test_what_is_released_goes_with_the_weights_that_were_published_before() -> None:
    """The learner is another process: it may publish and release while relays are asked."""

    class Asked(Numbers):
        def next(self) -> Arrays | None:
            found = super().next()
            if not acted:  # whoever was asked first had nothing; then the learner acts
                acted.append(True)
                weights.pending.append(1)
                released.pending.append(1)
            return found

    acted: list[bool] = []
    weights, released = Asked(), Asked()
    pump = Pump()
    pump.add(0, weights, first=True)
    pump.add(1, released, first=False)
    assert taken(pump) + taken(pump) == [(0, 1), (1, 1)]


def test_a_full_stream_leaves_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_module, "PACKET_BYTES", 16)
    pump = Pump()
    pump.add(0, Numbers(*range(100)), first=False)
    pump.add(1, Numbers(7, 8), first=False)
    pump.add(2, Numbers(5), first=True)
    assert taken(pump) == [(2, 5), (0, 0), (1, 7)]
    assert taken(pump) == [(0, 1), (1, 8)]
    assert taken(pump) == [(0, 2), (0, 3)]


@pytest.mark.parametrize("first", [True, False])
def test_only_cells_are_copied(first: bool) -> None:
    """They change at any time; what a stream gives stays until the other side has answered."""
    memory = np.zeros(3)

    class Memory(Numbers):
        def next(self) -> Arrays | None:
            return {"n": memory} if self.pending and self.pending.pop() else None

    pump = Pump()
    pump.add(0, Memory(1), first=first)
    ((_, frame),) = pump.take(0.0)
    assert (frame["n"] is memory) is not first
    memory[:] = 1.0
    assert frame["n"].tolist() == [0.0 if first else 1.0] * 3


def test_it_sleeps_until_one_of_its_wakeups_is_notified(wakeup: EventFd) -> None:
    other, relay = EventFd.create(), Numbers()
    pump = Pump([other, wakeup])
    pump.add(0, relay, first=False)
    asked = []
    relay.on_next = lambda: asked.append(1)

    def put() -> None:
        relay.pending.append(4)
        wakeup.notify()

    begun = time.monotonic()
    thread = soon(put)
    assert taken(pump, 30.0) == [(0, 4)]
    assert time.monotonic() - begun < LOOK_SECS
    thread.join()
    assert len(asked) < 10, "it does not ask again and again"
    assert taken(pump, 0.02) == [], "the wake-up was used up"
    other.close()


def test_it_looks_though_nobody_notifies() -> None:
    """Heartbeats are due without anybody having done anything."""
    relay = Numbers()
    pump = Pump()
    pump.add(0, relay, first=False)
    soon(lambda: relay.pending.append(4)).join()
    assert taken(pump, 30.0) == [(0, 4)]
    thread = soon(lambda: relay.pending.append(5))
    begun = time.monotonic()
    assert taken(pump, 30.0) == [(0, 5)]
    assert time.monotonic() - begun < 3 * LOOK_SECS
    thread.join()


def test_what_comes_is_accepted_and_who_waits_is_woken(wakeup: EventFd) -> None:
    relay = Numbers()
    pump = Pump()
    pump.add(0, relay, first=False, wakes=[wakeup])
    pump.add(1, Numbers(), first=False)
    assert set(pump.receives) == set(pump.sends) == {0, 1}
    pump.accept([(0, {"n": np.array(3)})])
    assert relay.told == [3]
    begun = time.monotonic()
    wakeup.wait(30.0)
    assert time.monotonic() - begun < 10.0


def test_an_answer_is_sent_at_once() -> None:
    relay = Numbers()
    pump = Pump()
    pump.add(0, relay, first=True)
    tell = relay.accept

    def answer(frame: Arrays) -> None:
        tell(frame)
        relay.pending.append(9)

    relay.accept = answer  # type: ignore[method-assign]
    thread = soon(lambda: pump.accept([(0, {"n": np.array(3)})]))
    begun = time.monotonic()
    assert taken(pump, 30.0) == [(0, 9)]
    assert time.monotonic() - begun < LOOK_SECS
    thread.join()


@pytest.mark.parametrize(
    ("number", "frame", "message"),
    [
        (0, {"n": np.array(-1)}, r"relay 0 \(Numbers\) cannot take a frame: RuntimeError: no room"),
        (0, {}, "KeyError"),
        (5, {}, "relay 5"),
    ],
)
def test_a_frame_that_a_relay_cannot_take_is_an_error(
    number: int, frame: Arrays, message: str
) -> None:
    pump = Pump()
    pump.add(0, Numbers(), first=False)
    with pytest.raises(WireError, match=message):
        pump.accept([(number, frame)])
    pump.accept([(0, {"n": np.array(1)})])


def test_closing_wakes_who_takes_and_touches_no_relay_any_more() -> None:
    relay, closings = Numbers(), list[str]()
    pump = Pump()
    pump.on_close = lambda: closings.append(pump.reason)
    pump.add(0, relay, first=False)
    thread = soon(lambda: pump.close("the lease is over"))
    begun = time.monotonic()
    assert taken(pump, 30.0) == []
    assert time.monotonic() - begun < LOOK_SECS
    thread.join()
    relay.pending.append(1)
    assert taken(pump, 30.0) == []
    pump.accept([(0, {"n": np.array(3)})])
    pump.close("again")
    assert (relay.pending, relay.told, closings) == ([1], [], ["the lease is over"])


def test_finishing_takes_the_rest_first() -> None:
    pump = Pump()
    pump.add(0, Numbers(1, 2), first=False)
    pump.finish()
    assert not pump.closed
    assert taken(pump, 30.0) == [(0, 1), (0, 2)]
    assert taken(pump, 30.0) == []
    assert pump.closed
    asleep = Pump()
    thread = soon(asleep.finish)
    assert taken(asleep, 30.0) == []
    assert asleep.closed
    thread.join()


def test_two_threads_that_send_and_receive_lose_nothing() -> None:
    """The relays echo what they are told."""

    class Echo(Numbers):
        def accept(self, frame: Arrays) -> None:
            self.pending.append(int(frame["n"]))

    pump, num = Pump(), 3000
    for number in range(4):
        pump.add(number, Echo(), first=number == 0)
    heard: dict[int, list[int]] = {number: [] for number in range(4)}

    def send() -> None:
        while not pump.closed:
            for number, value in taken(pump, 30.0):
                heard[number].append(value)

    thread = threading.Thread(target=send)
    thread.start()
    for value in range(num):
        pump.accept([(value % 4, {"n": np.array(value)})])
    pump.finish()
    thread.join(30.0)
    assert heard == {number: list(range(number, num, 4)) for number in range(4)}
