"""A group of processes on one machine that add their vectors in shared memory.

Each member has a slot. It writes its vector, says that it has arrived, waits until all have, and
adds up. Slots are used in turn (two of each): whoever is at round k + 2 has seen all others arrive
at k + 1, so nobody still reads what it overwrites, and one wait a round is enough.

A member that dies leaves nothing locked; whoever supervises ends the others.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import nullcontext
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import RunFailed
from rookery.core.group import Waiting
from rookery.core.patience import Patience
from rookery.core.ports import End
from rookery.core.spec import Array, Arrays, ArraySpec

T = TypeVar("T")
Meeting = Generator[None, None, T]
"""Yields while others have not arrived; returns what all together made."""

LOOKS = 200
"""How often to look before sleeping: members mostly arrive within the same fraction of a ms."""
SLICE_SECS = 0.2
SMALL_BYTES = 1 << 16
"""Up to here every member adds up the whole; beyond, each a part, which the others then copy."""


def group_specs(size: int, num_bytes: int) -> dict[str, ArraySpec]:
    """The arrays of a group of ``size`` members whose vectors take at most ``num_bytes``."""
    return {
        "slots": ArraySpec((2, size, num_bytes), np.dtype(np.uint8)),
        "sums": ArraySpec((2, num_bytes), np.dtype(np.uint8)),
        "arrived": ArraySpec((size, 8), np.dtype(np.int64)),  # a cache line each
        "rows": ArraySpec((2, size, 8), np.dtype(np.int64)),
    }


class SharedGroup:
    """A :class:`~rookery.core.group.Group` over the arrays of :func:`group_specs`."""

    def __init__(
        self, arrays: Arrays, end: End, *, role: str = "worker", timeout_secs: float = 600.0
    ) -> None:
        """``end.peers`` are the wake-ups of all members; ``role`` is what they are called."""
        self.rank, self.size = end.replica, len(end.peers)
        self.slots, self.sums = arrays["slots"], arrays["sums"]
        self.arrived, self.rows = arrays["arrived"][:, 0], arrays["rows"]
        self.wakeups = end.peers
        self.role, self.timeout_secs = role, timeout_secs
        self.waiting: Waiting = nullcontext
        self.round = int(self.arrived[self.rank])

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up over all members, in the order of their ranks."""
        values = tensor.detach().cpu().reshape(-1).numpy()
        total = self._wait_for(self.summing(values))
        with torch.no_grad():
            return tensor.copy_(torch.from_numpy(total).view(tensor.shape))

    def gather(self, rows: Array) -> list[Array]:
        """Rows of all members, at the first."""
        return self._wait_for(self.gathering(rows))

    def first(self, values: Array) -> Array:
        """The first member's values."""
        return self._wait_for(self.sharing(values))

    # ---- the same step by step: each yields while others have not arrived ------------------------

    def summing(self, values: Array) -> Meeting[Array]:
        """The sum of ``values`` ``[N]`` over all members."""
        self._check(values.nbytes)
        buffer = self.round % 2
        slots = [slot[: values.nbytes].view(values.dtype) for slot in self.slots[buffer]]
        slots[self.rank][:] = values
        yield from self._meet()
        if values.nbytes <= SMALL_BYTES:
            return _added(slots, np.empty_like(values))
        total: Array = self.sums[buffer, : values.nbytes].view(values.dtype)
        share = -(-len(values) // self.size)
        part = slice(self.rank * share, (self.rank + 1) * share)
        _added([slot[part] for slot in slots], total[part])
        yield from self._meet()
        return total

    def gathering(self, rows: Array) -> Meeting[list[Array]]:
        """The rows of all, at the first."""
        buffer, columns = self.round % 2, rows.shape[1]
        mine = np.ascontiguousarray(rows, dtype=np.float64)
        self._check(mine.nbytes)
        self.slots[buffer, self.rank, : mine.nbytes] = mine.reshape(-1).view(np.uint8)
        self.rows[buffer, self.rank, 0] = len(mine)
        yield from self._meet()
        if self.rank:
            return []
        counts = self.rows[buffer, :, 0].tolist()
        return [
            slot[: count * columns * 8].view(np.float64).reshape(count, columns).copy()
            for slot, count in zip(self.slots[buffer], counts, strict=True)
        ]

    def sharing(self, values: Array) -> Meeting[Array]:
        """The first member's."""
        mine = np.ascontiguousarray(values, dtype=np.float64)
        self._check(mine.nbytes)
        slot = self.slots[self.round % 2, 0, : mine.nbytes]
        if self.rank == 0:
            slot[:] = mine.reshape(-1).view(np.uint8)
        yield from self._meet()
        return slot.view(np.float64).copy()

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self.slots.shape[2]:
            raise ValueError(f"{num_bytes} bytes do not fit in slots of {self.slots.shape[2]}")

    def _meet(self) -> Meeting[None]:
        """Arrive, and yield until all have."""
        self.round += 1
        self.arrived[self.rank] = self.round
        for rank, wakeup in enumerate(self.wakeups):
            if rank != self.rank:
                wakeup.notify()
        while not self._all_here():
            yield

    def _wait_for(self, meeting: Meeting[T]) -> T:
        """Carry ``meeting`` to its end: look some times, then sleep."""
        for _ in range(LOOKS):
            try:
                next(meeting)
            except StopIteration as end:
                return cast("T", end.value)
        with self.waiting():
            return self._sleep_through(meeting)

    def _sleep_through(self, meeting: Meeting[T]) -> T:
        patience = Patience(self.timeout_secs)
        while True:
            try:
                next(meeting)
            except StopIteration as end:
                return cast("T", end.value)
            self.wakeups[self.rank].wait(SLICE_SECS)
            if patience.over():
                late = np.flatnonzero(self.arrived < self.round).tolist()
                names = ", ".join(f"{self.role}-{rank}" for rank in late)
                raise RunFailed(
                    f"{self.role}-{self.rank} waited {self.timeout_secs:g} s for {names}; "
                    "their logs say more"
                )

    def _all_here(self) -> bool:
        return bool((self.arrived >= self.round).all())


def _added(slots: Sequence[Array], out: Array) -> Array:
    np.copyto(out, slots[0])
    for slot in slots[1:]:
        np.add(out, slot, out=out)
    return out
