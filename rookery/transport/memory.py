"""Rollouts and weights handed over by a call, for roles in one thread.

A block has ``rounds * num_actors`` slots; slot ``round * num_actors + actor`` is a range of columns.
"""

from __future__ import annotations

from rookery.core.records import Rollout
from rookery.core.spec import Array, Arrays
from rookery.core.tensors import Tensors

FREE, FILLED = 0, 1


class RolloutBlock:
    """A batch's memory, its slots, and which of them are filled.

    ``flags`` ``[slots]`` has one writer per transition: an actor turns its slots from FREE to
    FILLED, the learner turns all from FILLED to FREE. So no lock is needed, in threads or processes.
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

    def __init__(self, block: RolloutBlock, actor: int) -> None:
        self.block = block
        self.own = range(actor, len(block.flags), block.num_actors)

    def _next(self) -> int | None:
        flags = self.block.flags
        return next((slot for slot in self.own if flags[slot] == FREE), None)

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

    def wait(self, timeout_secs: float) -> None:
        """Nothing to wait for: in one thread the others move only when this returns."""


class BlockSource:
    """The learner's end of a block (an :class:`~rookery.core.ports.ExperienceSource`)."""

    def __init__(self, block: RolloutBlock) -> None:
        self.block = block

    def can_sample(self) -> bool:
        """Whether every slot is filled."""
        return bool((self.block.flags == FILLED).all())

    def sample(self) -> Rollout:
        """The whole block."""
        return self.block.batch

    def release(self) -> None:
        """All slots are free again."""
        self.block.flags[:] = FREE

    def wait(self, timeout_secs: float) -> None:
        """Nothing to wait for: in one thread the others move only when this returns."""


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
