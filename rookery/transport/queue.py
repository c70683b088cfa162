"""Rollouts of many actors on their way to one learner, through bounded rings without a lock.

Every actor has a ring of S slots, each memory for one rollout of its own. The actor counts what it
has *put*, the learner what it has *taken*, *refused* and *learned*; every count has one writer. So
slot ``n % S`` holds rollout number ``n`` while ``taken <= n < put``; what a killed actor had half
written was never counted, and its replacement writes over it. Between processes the rings are
shared memory, in one process ordinary memory.

The learner takes the oldest rollouts there are, copies them into a batch of its own and frees their
slots at once, so actors go on while it learns.

Shapes: A actors, S slots of each, T rollout steps, B environments of one actor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rookery.core.errors import RunFailed
from rookery.core.ports import End, Kind
from rookery.core.records import Rollout
from rookery.core.spec import Array, Arrays, ArraySpec, under, zeros

PUT, TAKEN, REFUSED, LEARNED, SEEN = 0, 1, 2, 3, 4
"""SEEN is what was put when the learner looked last: in one thread, the turns before this one."""
_INT = np.dtype(np.int64)
_LINE = 8
"""Counts of an actor and of the learner lie on cache lines of their own."""


def queue_specs(
    rollout: Mapping[str, ArraySpec], num_actors: int, slots_per_actor: int
) -> dict[str, ArraySpec]:
    """The arrays of :class:`RolloutQueue` for rollouts of one actor like ``rollout``."""
    slots = {
        f"slot/{name}": spec.with_axes(num_actors, slots_per_actor)
        for name, spec in rollout.items()
    }
    return {
        "put": ArraySpec((num_actors, _LINE), _INT),
        "counts": ArraySpec((num_actors, _LINE), _INT),
        "numbers": ArraySpec((num_actors, slots_per_actor), _INT),
        **slots,
    }


class RolloutQueue:
    """The rings of all actors."""

    def __init__(self, arrays: Arrays) -> None:
        self._put, self._counts = arrays["put"][:, 0], arrays["counts"]
        self.numbers = arrays["numbers"]
        """``[A, S]`` the number that the actor gave to the rollout in each slot."""
        self.num_actors, self.num_slots = map(int, self.numbers.shape)
        fields = under("slot/", arrays)
        self.slots: list[list[Rollout]] = [
            [
                Rollout.from_flat({name: array[actor, slot] for name, array in fields.items()})
                for slot in range(self.num_slots)
            ]
            for actor in range(self.num_actors)
        ]

    def count(self, what: int) -> Array:
        """``[A]`` rollouts put, taken, refused or learned of each actor."""
        counts: Array = self._put if what == PUT else self._counts[:, what]
        return counts

    def slot(self, actor: int, number: int) -> Rollout:
        """Memory of an actor's rollout ``number``."""
        return self.slots[actor][number % self.num_slots]

    def put(self, actor: int) -> None:
        """The actor's next slot is filled (called by that actor alone)."""
        number = int(self._put[actor])
        self.numbers[actor, number % self.num_slots] = number
        self._put[actor] = number + 1  # last: from here on it is the learner's

    def oldest(self) -> tuple[int, int] | None:
        """Actor and number of the rollout to take next; None if none is there.

        The lowest version first, then the lowest number, so that all have their turn.
        """
        waiting = np.flatnonzero(self.count(PUT) > self.count(TAKEN))
        heads = ((int(actor), int(self.count(TAKEN)[actor])) for actor in waiting)
        return min(heads, key=self._age, default=None)

    def _age(self, head: tuple[int, int]) -> tuple[int, int, int]:
        actor, number = head
        return int(self.slot(actor, number).version[0]), number, actor

    def check(self, actor: int, number: int) -> None:
        """Stop if a slot does not hold what its counts say."""
        found = int(self.numbers[actor, number % self.num_slots])
        if found != number:
            raise RunFailed(
                f"the queue of actor-{actor} holds rollout {found} where {number} must be: "
                "another process wrote into its memory"
            )

    def metrics(self) -> dict[str, float]:
        """Counts of all actors, and how many rollouts wait."""
        sums = {name: int(self.count(what).sum()) for name, what in reversed(_NAMES.items())}
        told: dict[str, float] = {f"fleet/rollouts_{name}": sums[name] for name in _NAMES}
        return told | {"fleet/rollouts_waiting": sums["put"] - sums["taken"]}

    def arrays(self, put: int = PUT) -> Arrays:
        """Counts, and the rollouts that wait, to be saved; only while nobody puts.

        With ``put=SEEN`` without those that were put since the learner looked.
        """
        counts = [self.count(what) for what in (put, TAKEN, REFUSED, LEARNED)]
        arrays: Arrays = {"counts": np.stack(counts)}
        for actor in range(self.num_actors):
            for number in range(self.count(TAKEN)[actor], self.count(put)[actor]):
                rollout = self.slot(actor, number).flat()
                arrays |= {f"{actor}/{number}/{name}": array for name, array in rollout.items()}
        return arrays

    def load(self, saved: Mapping[str, Array]) -> bool:
        """Go on from :meth:`arrays`; False, and empty, if they are of other settings."""
        counts = saved["counts"]
        waiting = {key: array for key, array in saved.items() if key != "counts"}
        if counts.shape[1] != self.num_actors or (counts[0] - counts[1]).max() > self.num_slots:
            return False
        if not all(self._fits(key, array) for key, array in waiting.items()):
            return False
        for key, array in waiting.items():
            actor, number, name = _parsed(key)
            self.slot(actor, number).flat()[name][...] = array
            self.numbers[actor, number % self.num_slots] = number
        for what, row in zip(_NAMES.values(), counts, strict=True):
            self.count(what)[:] = row
        self.count(SEEN)[:] = self.count(PUT)
        return True

    def _fits(self, key: str, array: Array) -> bool:
        actor, number, name = _parsed(key)
        known = self.slot(actor, number).flat().get(name)
        return known is not None and (known.shape, known.dtype) == (array.shape, array.dtype)


_NAMES = {"put": PUT, "taken": TAKEN, "refused": REFUSED, "learned": LEARNED}


def _parsed(key: str) -> tuple[int, int, str]:
    actor, number, name = key.split("/", 2)
    return int(actor), int(number), name


class QueueSink:
    """An actor's end (an :class:`~rookery.core.ports.ExperienceSink`)."""

    in_parts = False

    def unlearned(self) -> bool:
        """Whether it has put some since the learner looked; those that waited then are saved."""
        queue = self.queue
        return bool(queue.count(PUT)[self.actor] > queue.count(SEEN)[self.actor])

    def __init__(self, queue: RolloutQueue, end: End) -> None:
        self.queue, self.actor, self.end = queue, end.replica, end

    def can_put(self) -> bool:
        """Whether one of this actor's slots is free."""
        queue = self.queue
        waiting = queue.count(PUT)[self.actor] - queue.count(TAKEN)[self.actor]
        return bool(waiting < queue.num_slots)

    def reserve(self) -> Rollout:
        """The next slot."""
        if not self.can_put():
            raise RuntimeError("reserve() without can_put()")
        return self.queue.slot(self.actor, int(self.queue.count(PUT)[self.actor]))

    def put(self, rollout: Rollout) -> None:
        """Hand the reserved slot over."""
        if rollout is not self.reserve():
            raise RuntimeError("put() of a rollout that was not reserved")
        self.queue.put(self.actor)
        self.end.notify_peers()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until the learner has taken."""
        self.end.own.wait(timeout_secs)


class QueueSource:
    """The learner's end (an :class:`~rookery.core.ports.ExperienceSource`).

    ::

        source.gather(updates)              # takes what is there
        if source.can_sample():
            batch = source.sample()
            ... learn, publish ...
            source.release()
    """

    def __init__(
        self,
        queue: RolloutQueue,
        batch: Arrays,
        end: End,
        *,
        num_envs: int,
        max_lag: int | None = None,
    ) -> None:
        self.queue, self.end = queue, end
        self.batch = Rollout.from_flat(batch)
        columns = range(0, len(self.batch.version), num_envs)
        self.places = [self.batch.columns(start, start + num_envs).flat() for start in columns]
        self.max_lag = max_lag
        self.gathered: list[int] = []
        """The actors whose rollouts are in the batch."""
        self.refused_steps = 0
        """Environment steps in what was refused since :meth:`take_refused_steps`."""

    def gather(self, updates: int) -> None:
        """Take the oldest rollouts, up to a whole batch; the learner has made ``updates``."""
        self.queue.count(SEEN)[:] = self.queue.count(PUT)
        while not self.can_sample():
            head = self.queue.oldest()
            if head is None:
                return
            self._take(*head, updates)

    def _take(self, actor: int, number: int, updates: int) -> None:
        """Copy a rollout into the batch, or refuse it; its slot is free again."""
        queue = self.queue
        queue.check(actor, number)
        rollout = queue.slot(actor, number)
        if self.max_lag is not None and updates - int(rollout.version[0]) > self.max_lag:
            self.refused_steps += rollout.num_steps
            queue.count(REFUSED)[actor] += 1
        else:
            place = self.places[len(self.gathered)]
            for name, array in rollout.flat().items():
                place[name][...] = array
            self.gathered.append(actor)
        queue.count(TAKEN)[actor] = number + 1
        if self.end.peers:
            self.end.peers[actor].notify()

    def can_sample(self) -> bool:
        """Whether a whole batch was gathered."""
        return len(self.gathered) == len(self.places)

    def sample(self) -> Rollout:
        """The batch; nobody else writes into it."""
        return self.batch

    def release(self) -> None:
        """The batch was learned from."""
        for actor in self.gathered:
            self.queue.count(LEARNED)[actor] += 1
        self.gathered.clear()

    def take_refused_steps(self) -> int:
        """Environment steps that were made but refused since the last call."""
        steps, self.refused_steps = self.refused_steps, 0
        return steps

    def missing(self) -> list[int]:
        """Actors of whom nothing waits: those who have nothing in the batch either, if any."""
        empty = np.flatnonzero(self.queue.count(PUT) == self.queue.count(TAKEN)).tolist()
        return [int(actor) for actor in empty if actor not in self.gathered] or empty

    def wait(self, timeout_secs: float) -> None:
        """Sleep until an actor has put."""
        self.end.own.wait(timeout_secs)


@dataclass(frozen=True)
class QueuePort:
    """Rollouts, put as they come and taken oldest first."""

    name: ClassVar[str] = "queue"
    kind: ClassVar[Kind] = "stream"
    about: ClassVar[str] = "rollouts, put as they come and taken oldest first"

    rollout: Mapping[str, ArraySpec]
    """One actor's rollout."""
    batch: Mapping[str, ArraySpec]
    """What the learner gathers, of as many rollouts as fit."""
    num_actors: int
    num_envs: int
    """Of each actor."""
    num_slots: int = 2
    """Rollouts of each that may wait."""
    max_lag: int | None = None

    def traffic(self) -> tuple[int, str]:
        """One actor's rollout."""
        return sum(spec.num_bytes for spec in self.rollout.values()), "rollout"

    def layout(self) -> dict[str, ArraySpec]:
        """The rings of all actors."""
        return queue_specs(self.rollout, self.num_actors, self.num_slots)

    def client(self, end: End) -> QueueSink:
        """An actor's end."""
        return QueueSink(RolloutQueue(end.arrays), end)

    def server(self, end: End) -> QueueSource:
        """The learner's end, with the memory of one batch."""
        queue, batch = RolloutQueue(end.arrays), zeros(self.batch)
        return QueueSource(queue, batch, end, num_envs=self.num_envs, max_lag=self.max_lag)

    def for_one(self, client: int) -> QueuePort:
        """With one actor."""
        return replace(self, num_actors=1)

    def client_relay(self, arrays: Arrays) -> QueueSender:
        """Beside an actor."""
        return QueueSender(RolloutQueue(arrays), self.rollout)

    def server_relay(self, end: End) -> QueueReceiver:
        """In the place of an actor."""
        return QueueReceiver(self.client(end), self.rollout)


_TAKEN_FRAME = {"taken": ArraySpec((1,), _INT)}


class QueueSender:
    """Sends what an actor puts; a slot is free again when the learner has taken what it held.

    Until the other side has told how many there is no room: another actor's may still wait there.
    """

    def __init__(self, queue: RolloutQueue, rollout: Mapping[str, ArraySpec]) -> None:
        self.queue, self.sent = queue, int(queue.count(PUT)[0])
        self.begun = self.sent
        self.sends, self.receives = rollout, _TAKEN_FRAME
        queue.count(TAKEN)[0] = self.begun - queue.num_slots

    def next(self) -> Arrays | None:
        """The oldest rollout that was not sent."""
        if self.sent == self.queue.count(PUT)[0]:
            return None
        self.sent += 1
        return self.queue.slot(0, self.sent - 1).flat()

    def accept(self, frame: Arrays) -> None:
        """How many the learner has taken."""
        self.queue.count(TAKEN)[0] = self.begun + frame["taken"][0]


class QueueReceiver:
    """Puts what another host's actor sent, and tells how many were taken."""

    def __init__(self, sink: QueueSink, rollout: Mapping[str, ArraySpec]) -> None:
        self.sink = sink
        self.told: int | None = None
        self.begun = int(sink.queue.count(PUT)[sink.actor])
        self.sends, self.receives = _TAKEN_FRAME, rollout

    def next(self) -> Arrays | None:
        """How many were taken, at first and when there are more. Those that another actor has left
        count against it: less than none were taken."""
        taken = int(self.sink.queue.count(TAKEN)[self.sink.actor]) - self.begun
        if taken == self.told:
            return None
        self.told = taken
        return {"taken": np.array([taken])}

    def accept(self, frame: Arrays) -> None:
        """A rollout into the next slot."""
        rollout = self.sink.reserve()
        for name, array in rollout.flat().items():
            array[...] = frame[name]
        self.sink.put(rollout)
