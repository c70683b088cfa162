"""A group of processes on one machine that add their vectors in shared memory.

Each member has a slot. It writes its vector, says that it has arrived, waits until all have, and
adds up. Slots are used in turn (two of each): whoever is at round k + 2 has seen all others arrive
at k + 1, so nobody still reads what it overwrites, and one wait a round is enough.

A member that dies leaves nothing locked; whoever supervises ends the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import RunFailed
from rookery.core.patience import Patience
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.transport.wake import Wake

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
        self,
        arrays: Arrays,
        rank: int,
        bells: Sequence[Wake],
        *,
        timeout_secs: float = 600.0,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.rank, self.size = rank, len(bells)
        self.slots, self.sums = arrays["slots"], arrays["sums"]
        self.arrived, self.rows = arrays["arrived"][:, 0], arrays["rows"]
        self.bells = bells
        self.timeout_secs = timeout_secs
        self.waiting = waiting
        self.round = int(self.arrived[rank])

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up over all members, in the order of their ranks."""
        values = tensor.detach().cpu().reshape(-1).numpy()
        self._check(values.nbytes)
        buffer = self.round % 2
        slots = [slot[: values.nbytes].view(values.dtype) for slot in self.slots[buffer]]
        slots[self.rank][:] = values
        self._meet()
        if values.nbytes <= SMALL_BYTES:
            total = _added(slots, np.empty_like(values))
        else:
            total = self.sums[buffer, : values.nbytes].view(values.dtype)
            share = -(-len(values) // self.size)
            part = slice(self.rank * share, (self.rank + 1) * share)
            _added([slot[part] for slot in slots], total[part])
            self._meet()
        with torch.no_grad():
            return tensor.copy_(torch.from_numpy(total).view(tensor.shape))

    def gather(self, rows: Array) -> list[Array]:
        """Rows of all members, at the first."""
        buffer, columns = self.round % 2, rows.shape[1]
        mine = np.ascontiguousarray(rows, dtype=np.float64)
        self._check(mine.nbytes)
        self.slots[buffer, self.rank, : mine.nbytes] = mine.reshape(-1).view(np.uint8)
        self.rows[buffer, self.rank, 0] = len(mine)
        self._meet()
        if self.rank:
            return []
        counts = self.rows[buffer, :, 0].tolist()
        return [
            slot[: count * columns * 8].view(np.float64).reshape(count, columns).copy()
            for slot, count in zip(self.slots[buffer], counts, strict=True)
        ]

    def first(self, values: Array) -> Array:
        """The first member's values."""
        mine = np.ascontiguousarray(values, dtype=np.float64)
        self._check(mine.nbytes)
        slot = self.slots[self.round % 2, 0, : mine.nbytes]
        if self.rank == 0:
            slot[:] = mine.reshape(-1).view(np.uint8)
        self._meet()
        return slot.view(np.float64).copy()

    def _check(self, num_bytes: int) -> None:
        if num_bytes > self.slots.shape[2]:
            raise ValueError(f"{num_bytes} bytes do not fit in slots of {self.slots.shape[2]}")

    def _meet(self) -> None:
        """Arrive, and wait until all have."""
        self.round += 1
        self.arrived[self.rank] = self.round
        for rank, bell in enumerate(self.bells):
            if rank != self.rank:
                bell.ring()
        for _ in range(LOOKS):
            if self._all_here():
                return
        with self.waiting():
            self._sleep_until_all_here()

    def _sleep_until_all_here(self) -> None:
        patience = Patience(self.timeout_secs)
        while not self._all_here():
            self.bells[self.rank].wait(SLICE_SECS)
            if patience.over():
                late = np.flatnonzero(self.arrived < self.round).tolist()
                names = ", ".join(f"worker-{rank}" for rank in late)
                raise RunFailed(
                    f"worker-{self.rank} waited {self.timeout_secs:g} s for {names}; "
                    "their logs say more"
                )

    def _all_here(self) -> bool:
        return bool((self.arrived >= self.round).all())


def _added(slots: Sequence[Array], out: Array) -> Array:
    np.copyto(out, slots[0])
    for slot in slots[1:]:
        np.add(out, slot, out=out)
    return out
