"""Rollouts on their way through bounded rings: none lost, none twice, none half written.

Shapes: T rollout steps, B environments of one actor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from rookery.core.errors import RunFailed
from rookery.core.ports import End, InTurn, Wakeup
from rookery.core.records import Rollout, rollout_spec
from rookery.core.spec import Array, ArraySpec, zeros
from rookery.transport.eventfd import EventFd
from rookery.transport.queue import (
    LEARNED,
    PUT,
    REFUSED,
    TAKEN,
    QueueSink,
    QueueSource,
    RolloutQueue,
    queue_specs,
)

T, B = 3, 2
FLOAT = np.dtype(np.float32)


def spec(num_envs: int) -> dict[str, ArraySpec]:
    return rollout_spec(
        num_steps=T,
        num_envs=num_envs,
        obs={"obs": ArraySpec((4,), FLOAT)},
        action=ArraySpec((), np.dtype(np.int64)),
        state={"h": ArraySpec((5,), FLOAT)},
    )


class Stage:
    """A queue, its ends, and a learner that only counts its updates."""

    def __init__(
        self,
        num_actors: int,
        slots: int,
        batch: int,
        max_lag: int | None = None,
        *,
        wakeup: Callable[[], Wakeup] = InTurn,
    ) -> None:
        arrays = zeros(queue_specs(spec(B), num_actors, slots))
        self.queue = RolloutQueue(arrays)
        own, others = wakeup(), [wakeup() for _ in range(num_actors)]
        self.sinks = [
            QueueSink(self.queue, End(arrays, actor, 0, others[actor], [own]))
            for actor in range(num_actors)
        ]
        self.source = QueueSource(
            self.queue,
            zeros(spec(batch * B)),
            End(arrays, 0, 0, own, others),
            num_envs=B,
            max_lag=max_lag,
        )
        self.updates = 0

    def put(self, actor: int, mark: float, version: int | None = None) -> None:
        sink = self.sinks[actor]
        rollout = sink.reserve()
        for array in rollout.flat().values():
            array[...] = mark
        rollout.mask[...] = True
        rollout.version[:] = self.updates if version is None else version
        sink.put(rollout)

    def learn(self) -> list[float]:
        """The marks of the next batch; none if there is no whole batch."""
        self.source.gather(self.updates)
        if not self.source.can_sample():
            return []
        batch = self.source.sample()
        for array in (batch.obs["obs"][:-1, :, 0], batch.reward, batch.value[1:]):
            np.testing.assert_array_equal(array, np.broadcast_to(batch.reward[0], array.shape))
        np.testing.assert_array_equal(batch.state["h"][:, 0], batch.reward[0])
        marks: Array = batch.reward[0, ::B].copy()
        self.updates += 1
        self.source.release()
        return [float(mark) for mark in marks]

    def counts(self) -> dict[str, list[int]]:
        names = {"put": PUT, "taken": TAKEN, "refused": REFUSED, "learned": LEARNED}
        return {name: self.queue.count(what).tolist() for name, what in names.items()}


def stage(num_actors: int = 1, slots: int = 2, batch: int = 1, max_lag: int | None = None) -> Stage:
    return Stage(num_actors, slots, batch, max_lag)


def test_slots_are_contiguous_and_apart() -> None:
    queue = stage(num_actors=2, slots=3).queue
    for actor in range(2):
        for number in range(3):
            for name, array in queue.slot(actor, number).flat().items():
                assert array.flags.c_contiguous, name
                assert not np.shares_memory(array, queue.slot(actor, number + 1).flat()[name])
    assert queue.slot(1, 4) is queue.slot(1, 1)


def test_those_are_missing_of_whom_nothing_waits() -> None:
    now = stage(num_actors=2, batch=2)
    assert now.source.missing() == [0, 1]
    now.put(0, 1.0)
    now.source.gather(0)
    assert now.source.missing() == [1]
    alone = stage(num_actors=1, batch=2)
    alone.put(0, 1.0)
    alone.source.gather(0)
    assert alone.source.missing() == [0]  # half of the batch is its own, and it owes the rest


def test_an_actor_with_full_slots_must_wait_until_one_is_taken() -> None:
    now = stage(slots=2)
    now.put(0, 1.0)
    assert now.sinks[0].can_put()
    now.put(0, 2.0)
    assert not now.sinks[0].can_put()
    with pytest.raises(RuntimeError, match="without can_put"):
        now.sinks[0].reserve()
    assert now.learn() == [1.0]
    assert now.sinks[0].can_put()


def test_only_the_reserved_rollout_can_be_put() -> None:
    now = stage(num_actors=2)
    with pytest.raises(RuntimeError, match="not reserved"):
        now.sinks[0].put(now.sinks[1].reserve())


def test_slots_are_free_as_soon_as_they_are_taken() -> None:
    """Before a batch is whole, and long before it is learned from."""
    now = stage(slots=1, batch=3)
    for mark in (1.0, 2.0, 3.0):
        now.put(0, mark)
        now.source.gather(0)
        assert now.sinks[0].can_put()
    assert now.learn() == [1.0, 2.0, 3.0]


def test_the_oldest_is_taken_first_whoever_made_it() -> None:
    now = stage(num_actors=3, slots=2, batch=2)
    now.put(2, 20.0, version=4)
    now.put(2, 21.0, version=5)
    now.put(0, 0.0, version=5)
    now.put(1, 10.0, version=3)
    now.updates = 6
    assert now.learn() == [10.0, 20.0]
    assert now.learn() == [0.0, 21.0], "of one version, the actor that has brought less"
    assert now.learn() == []


def test_a_half_written_rollout_is_never_read() -> None:
    """An actor dies before it puts; its replacement writes over what it left."""
    now = stage(slots=2)
    now.put(0, 1.0)
    now.sinks[0].reserve().reward[...] = np.nan
    now.sinks[0] = QueueSink(now.queue, End({}))
    assert now.learn() == [1.0]
    assert now.learn() == []
    now.put(0, 2.0)
    assert now.learn() == [2.0]
    assert now.counts() == {"put": [2], "taken": [2], "refused": [0], "learned": [2]}


def test_memory_that_others_wrote_into_is_found_out() -> None:
    now = stage()
    now.put(0, 1.0)
    now.queue.numbers[0, 0] = 7
    with pytest.raises(RunFailed, match="actor-0 holds rollout 7 where 0 must be"):
        now.learn()


# --- lag ---------------------------------------------------------------------------------------


def test_what_is_too_old_is_refused_and_its_steps_are_told() -> None:
    now = stage(slots=4, max_lag=2)
    for version in range(4):
        now.put(0, float(version), version=version)
    now.updates = 4
    assert now.learn() == [2.0], "versions 0 and 1 are older than 2 updates"
    assert now.source.take_refused_steps() == 2 * T * B
    assert now.source.take_refused_steps() == 0
    assert now.learn() == [3.0]
    assert now.counts() == {"put": [4], "taken": [4], "refused": [2], "learned": [2]}


@pytest.mark.parametrize(("num_actors", "slots", "batch"), [(1, 1, 1), (2, 2, 2), (3, 2, 1)])
def test_back_pressure_bounds_the_lag_of_a_slow_learner(
    num_actors: int, slots: int, batch: int
) -> None:
    """All slots are full before each update, the worst case: what waits is never older than the
    updates that empty all slots."""
    now = stage(num_actors=num_actors, slots=slots, batch=batch)
    worst = 0
    for _ in range(40):
        for actor, sink in enumerate(now.sinks):
            while sink.can_put():
                now.put(actor, 0.0)
        before = now.updates
        assert now.learn()
        worst = max(worst, int((before - now.source.batch.version).max()))
    bound = -(-num_actors * slots // batch) - 1
    assert worst == bound


def test_with_a_largest_lag_nothing_older_is_ever_learned_from() -> None:
    now = stage(num_actors=3, slots=3, batch=1, max_lag=2)
    for _ in range(40):
        for actor, sink in enumerate(now.sinks):
            while sink.can_put():
                now.put(actor, 0.0)
        before = now.updates
        if now.learn():
            assert int((before - now.source.batch.version).max()) <= 2
    counts = now.counts()
    assert sum(counts["refused"]) > 0
    assert sum(counts["learned"]) == now.updates
    assert all(
        taken == refused + learned
        for taken, refused, learned in zip(
            counts["taken"], counts["refused"], counts["learned"], strict=True
        )
    )


# --- many at once ------------------------------------------------------------------------------


def test_nothing_is_lost_or_taken_twice_under_back_pressure() -> None:
    num_actors, each = 3, 120
    now = Stage(num_actors, 2, 2, wakeup=EventFd.create)
    waits = [0] * num_actors

    def act(actor: int) -> None:
        sink = now.sinks[actor]
        for number in range(each):
            while not sink.can_put():
                waits[actor] += 1
                sink.wait(5.0)
            now.put(actor, actor * 1000.0 + number)

    threads = [threading.Thread(target=act, args=(actor,)) for actor in range(num_actors)]
    for thread in threads:
        thread.start()
    marks: list[float] = []
    while len(marks) < num_actors * each:
        found = now.learn()
        marks += found
        if not found:
            now.source.wait(5.0)
    for thread in threads:
        thread.join()
    assert sorted(marks) == [actor * 1000.0 + n for actor in range(num_actors) for n in range(each)]
    for actor in range(num_actors):
        own = [mark for mark in marks if mark // 1000 == actor]
        assert own == sorted(own), "in the order in which it was put"
    assert now.counts() == {
        "put": [each] * 3,
        "taken": [each] * 3,
        "refused": [0] * 3,
        "learned": [each] * 3,
    }
    assert sum(waits) < 20 * num_actors * each, "who waits sleeps"


def test_metrics_tell_all_counts() -> None:
    now = stage(num_actors=2, slots=3, max_lag=0)
    for actor in (0, 0, 1):
        now.put(actor, 0.0)
    now.learn()
    now.learn()
    assert now.queue.metrics() == {
        "fleet/rollouts_put": 3,
        "fleet/rollouts_taken": 3,
        "fleet/rollouts_refused": 2,
        "fleet/rollouts_learned": 1,
        "fleet/rollouts_waiting": 0,
    }


# --- saved -------------------------------------------------------------------------------------


def filled() -> Stage:
    now = stage(num_actors=2, slots=3)
    for mark, actor in enumerate((0, 1, 1, 0, 1)):
        now.put(actor, float(mark), version=mark)
    now.learn()
    return now


def test_a_saved_queue_goes_on_where_it_was() -> None:
    now, again = filled(), stage(num_actors=2, slots=3)
    saved = {name: array.copy() for name, array in now.queue.arrays().items()}
    assert again.queue.load(saved)
    assert again.counts() == now.counts()
    for each in (now, again):
        each.put(0, 9.0, version=9)
    assert [now.learn() for _ in range(5)] == [again.learn() for _ in range(5)]


@pytest.mark.parametrize("changed", [(3, 3), (1, 3), (2, 1)])
def test_a_queue_of_other_settings_is_left_out(changed: tuple[int, int]) -> None:
    other = stage(num_actors=changed[0], slots=changed[1])
    assert not other.queue.load(filled().queue.arrays())
    assert sum(other.counts()["put"]) == 0


def test_a_queue_of_other_shapes_is_left_out() -> None:
    saved = filled().queue.arrays()
    saved["1/1/reward"] = np.zeros((T, B + 1), np.float32)
    other = stage(num_actors=2, slots=3)
    assert not other.queue.load(saved)
    assert Rollout.from_flat(other.queue.slot(1, 1).flat()).reward.sum() == 0
