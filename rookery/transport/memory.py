"""Rollouts in a block of memory, and weights by reference.

In one thread the block is ordinary memory and nobody waits; between processes it is shared memory
and each end has a bell (:class:`~rookery.transport.wake.Wake`).

A block has ``rounds * num_actors`` slots; slot ``round * num_actors + actor`` is some columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rookery.core.records import Rollout
from rookery.core.spec import Array, Arrays
from rookery.core.tensors import Tensors
from rookery.transport.wake import Wake

FREE, FILLED = 0, 1


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
    """An actor's end of a block (an :class:`~rookery.core.ports.ExperienceSink`)."""

    def __init__(
        self, block: RolloutBlock, actor: int, *, own: Wake | None = None, other: Wake | None = None
    ) -> None:
        self.block = block
        self.bell = own
        self.learner_bell = other
        self.slots = range(actor, len(block.flags), block.num_actors)

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
        if self.learner_bell is not None:
            self.learner_bell.ring()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until the learner released; in one thread nobody moves meanwhile, so return."""
        if self.bell is not None:
            self.bell.wait(timeout_secs)


class BlockSource:
    """The learner's end of a block (an :class:`~rookery.core.ports.ExperienceSource`)."""

    def __init__(
        self, block: RolloutBlock, *, own: Wake | None = None, others: Sequence[Wake] = ()
    ) -> None:
        self.block = block
        self.bell = own
        self.actor_bells = others

    def can_sample(self) -> bool:
        """Whether every slot is filled."""
        return bool((self.block.flags == FILLED).all())

    def sample(self) -> Rollout:
        """The whole block."""
        return self.block.batch

    def release(self) -> None:
        """All slots are free again."""
        self.block.flags[:] = FREE
        for bell in self.actor_bells:
            bell.ring()

    def missing(self) -> list[int]:
        """Actors whose rollouts are not all there yet."""
        flags = self.block.flags.reshape(-1, self.block.num_actors)
        return [int(actor) for actor in np.flatnonzero((flags == FREE).any(0))]

    def wait(self, timeout_secs: float) -> None:
        """Sleep until an actor has put; in one thread nobody moves meanwhile, so return."""
        if self.bell is not None:
            self.bell.wait(timeout_secs)


class ParamCell:
    """The newest weights, by reference."""

    def __init__(self) -> None:
        self.version = -1
        self.params: Tensors = {}

    def publish(self, version: int, params: Tensors) -> None:
        """Make ``params`` the newest."""
        self.version, self.params = version, params

    def get(self, newer_than: int) -> tuple[int, Tensors] | None:
        """Version and weights, if newer."""
        return (self.version, self.params) if self.version > newer_than else None
