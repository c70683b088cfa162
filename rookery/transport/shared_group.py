"""A group of processes on one machine that add their vectors in shared memory.

Each member has a slot. It writes its vector, says that it has arrived, waits until all have, and
adds up. Slots are used in turn (two of each): whoever is at round k + 2 has seen all others arrive
at k + 1, so nobody still reads what it overwrites, and one wait a round is enough.

A member that dies leaves nothing locked; whoever supervises ends the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import RunFailed
from rookery.core.group import Alone, Group, Waiting
from rookery.core.patience import Patience
from rookery.core.ports import End, Kind
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.transport.local_port import LocalPort

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
        for rank, wakeup in enumerate(self.wakeups):
            if rank != self.rank:
                wakeup.notify()
        for _ in range(LOOKS):
            if self._all_here():
                return
        with self.waiting():
            self._sleep_until_all_here()

    def _sleep_until_all_here(self) -> None:
        patience = Patience(self.timeout_secs)
        while not self._all_here():
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


@dataclass(frozen=True)
class GroupPort(LocalPort):
    """Gradients, and whatever else members of a group add up."""

    name: ClassVar[str] = "gradients"
    kind: ClassVar[Kind] = "group"
    about: ClassVar[str] = "gradients, added up over all that hold them"

    role: str
    """What the members are called."""
    size: int
    num_bytes: int
    """Of the largest vector that is added up."""

    def traffic(self) -> tuple[int, str]:
        """A gradient."""
        return self.num_bytes, "update"

    def layout(self) -> dict[str, ArraySpec]:
        """Slots of all members; one alone needs none."""
        return group_specs(self.size, -(-self.num_bytes // 64) * 64) if self.size > 1 else {}

    def client(self, end: End) -> Group:
        """A member."""
        if self.size == 1:
            return Alone()
        return SharedGroup(end.arrays, end, role=self.role)

    def server(self, end: End) -> Group:
        """Members serve each other."""
        return self.client(end)
