"""Rollouts in one block of memory, filled by all actors and learned from as a whole.

A block has ``rounds * num_actors`` slots; slot ``round * num_actors + actor`` is some columns. In
one thread it is ordinary memory and nobody waits; between processes it is shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rookery.core.ports import End, Kind
from rookery.core.records import Rollout
from rookery.core.spec import Array, Arrays, ArraySpec

FREE, FILLED = 0, 1
_FLAGS = "flags"
_INT = np.dtype(np.int64)
RELEASED = {"released": ArraySpec((1,), _INT)}


class RolloutBlock:
    """A batch's memory, its slots, and which of them are filled.

    ``flags`` ``[slots]`` has one writer per transition: an actor turns its slots from FREE to
    FILLED, the learner turns all from FILLED to FREE. So nothing needs a lock.
    """

    def __init__(self, arrays: Arrays, flags: Array, *, num_actors: int, num_envs: int) -> None:
        self.batch = Rollout.from_flat(arrays)
        self.flags = flags
        self.num_actors = num_actors
        self.slots = [
            self.batch.columns(slot * num_envs, (slot + 1) * num_envs) for slot in range(len(flags))
        ]


class BlockSink:
    """An actor's end (an :class:`~rookery.core.ports.ExperienceSink`)."""

    def __init__(self, block: RolloutBlock, end: End) -> None:
        self.block, self.end = block, end
        self.slots = range(end.replica, len(block.flags), block.num_actors)

    @property
    def in_parts(self) -> bool:
        """Whether a batch is made of several rollouts."""
        return len(self.block.flags) > 1

    def unlearned(self) -> bool:
        """Whether rollouts that were put wait for the rest of their batch, or are learned from."""
        return any(self.block.flags[slot] == FILLED for slot in self.slots)

    def _next(self) -> int | None:
        flags = self.block.flags
        return next((slot for slot in self.slots if flags[slot] == FREE), None)

    def can_put(self) -> bool:
        """Whether one of this actor's slots is free."""
        return self._next() is not None

    def reserve(self) -> Rollout:
        """The first free slot."""
        slot = self._next()
        if slot is None:
            raise RuntimeError("reserve() without can_put()")
        return self.block.slots[slot]

    def put(self, rollout: Rollout) -> None:
        """Mark the reserved slot as filled."""
        slot = self._next()
        if slot is None or self.block.slots[slot] is not rollout:
            raise RuntimeError("put() of a rollout that was not reserved")
        self.block.flags[slot] = FILLED
        self.end.notify_peers()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until the learner has released."""
        self.end.own.wait(timeout_secs)


class BlockSource:
    """The learner's end (an :class:`~rookery.core.ports.ExperienceSource`)."""

    def __init__(self, block: RolloutBlock, end: End) -> None:
        self.block, self.end = block, end

    def can_sample(self) -> bool:
        """Whether every slot is filled."""
        return bool((self.block.flags == FILLED).all())

    def sample(self) -> Rollout:
        """The whole block."""
        return self.block.batch

    def release(self) -> None:
        """All slots are free again."""
        self.block.flags[:] = FREE
        self.end.notify_peers()

    def missing(self) -> list[int]:
        """Actors whose rollouts are not all there yet."""
        flags = self.block.flags.reshape(-1, self.block.num_actors)
        return [int(actor) for actor in np.flatnonzero((flags == FREE).any(0))]

    def wait(self, timeout_secs: float) -> None:
        """Sleep until an actor has put."""
        self.end.own.wait(timeout_secs)


@dataclass(frozen=True)
class BlockPort:
    """Rollouts, one round of all actors at a time."""

    name: ClassVar[str] = "experience"
    kind: ClassVar[Kind] = "stream"
    about: ClassVar[str] = "rollouts, one round of all at a time"

    rollout: Callable[[int], dict[str, ArraySpec]]
    """The arrays of a rollout of so many environments."""
    num_actors: int
    num_envs: int
    """Of each actor."""
    rounds: int = 1
    """Rollouts that each actor puts in one batch."""

    def traffic(self) -> tuple[int, str]:
        """One actor's rollout."""
        return sum(spec.num_bytes for spec in self.rollout(self.num_envs).values()), "rollout"

    def layout(self) -> dict[str, ArraySpec]:
        """A flag a slot, and the block."""
        slots = self.rounds * self.num_actors
        return {_FLAGS: ArraySpec((slots,), _INT), **self.rollout(slots * self.num_envs)}

    def block(self, arrays: Arrays) -> RolloutBlock:
        """The block in ``arrays``."""
        fields = {name: array for name, array in arrays.items() if name != _FLAGS}
        return RolloutBlock(
            fields, arrays[_FLAGS], num_actors=self.num_actors, num_envs=self.num_envs
        )

    def client(self, end: End) -> BlockSink:
        """An actor's end."""
        return BlockSink(self.block(end.arrays), end)

    def server(self, end: End) -> BlockSource:
        """The learner's end."""
        return BlockSource(self.block(end.arrays), end)

    def for_one(self, client: int) -> BlockPort:
        """With one actor."""
        return replace(self, num_actors=1)

    def client_relay(self, arrays: Arrays) -> BlockSender:
        """Beside an actor."""
        return BlockSender(self.block(arrays), self.rollout(self.num_envs))

    def server_relay(self, end: End) -> BlockReceiver:
        """In the place of an actor."""
        return BlockReceiver(self.client(end), self.rollout(self.num_envs))


class BlockSender:
    """Sends what an actor puts; what it put is free again when the learner has released it.

    Until then there is no room, at first neither: the learner may still have another actor's.
    """

    def __init__(self, block: RolloutBlock, rollout: Mapping[str, ArraySpec]) -> None:
        self.block, self.sent = block, len(block.flags)
        self.sends, self.receives = rollout, RELEASED
        block.flags[:] = FILLED

    def next(self) -> Arrays | None:
        """The oldest rollout that was not sent."""
        if self.sent == len(self.block.flags) or self.block.flags[self.sent] == FREE:
            return None
        self.sent += 1
        return self.block.slots[self.sent - 1].flat()

    def accept(self, frame: Arrays) -> None:
        """All slots are free again."""
        self.sent = 0
        self.block.flags[:] = FREE


class BlockReceiver:
    """Puts what another host's actor sent, and tells when the learner has released it."""

    def __init__(self, sink: BlockSink, rollout: Mapping[str, ArraySpec]) -> None:
        self.sink, self.put = sink, len(sink.slots)
        self.sends, self.receives = RELEASED, rollout
        flags = sink.block.flags
        if any(flags[slot] == FREE for slot in sink.slots):  # so the learner does not read any
            for slot in sink.slots:  # what another actor has put of a round that it did not end
                flags[slot] = FREE

    def next(self) -> Arrays | None:
        """That all slots were released, or are free at first."""
        flags = self.sink.block.flags
        if self.put < len(self.sink.slots) or any(flags[slot] for slot in self.sink.slots):
            return None
        self.put = 0
        return {"released": np.ones(1, np.int64)}

    def accept(self, frame: Arrays) -> None:
        """A rollout into the columns of its slot."""
        rollout = self.sink.reserve()
        for name, array in rollout.flat().items():
            array[...] = frame[name]
        self.sink.put(rollout)
        self.put += 1
