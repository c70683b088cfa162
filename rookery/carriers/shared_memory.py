"""Arrays in memory that processes share, without a name that could leak.

The memory is an anonymous file (memfd): it is passed to children by its descriptor and is gone when
the last process that holds it is gone, however that process ends.

**Order of stores.** Everything in ``transport/`` and ``params/`` that works without a lock writes
its data first and then a count, a flag or a sequence number that says so, and reads in the opposite
order. That is right on processors that keep the order of stores and of loads, as x86-64 does;
others would need fences, which Python does not offer. So memory is shared only there.
"""

from __future__ import annotations

import mmap
import os
import platform
from collections.abc import Mapping

import numpy as np

from rookery.core.errors import UserError
from rookery.core.spec import Arrays, ArraySpec

_ALIGN = 64
"""A cache line: arrays that different processes write must not share one."""


class SharedArena:
    """The arrays of ``specs`` in one shared mapping, laid out the same by every process.

    ::

        arena = SharedArena.create(specs)
        child = Popen(..., pass_fds=[arena.descriptor])
        # in the child
        arena = SharedArena(descriptor, specs)
        arena.arrays["flags"]
    """

    def __init__(self, descriptor: int, specs: Mapping[str, ArraySpec]) -> None:
        self.descriptor = descriptor
        offsets, size = layout(specs)
        self._map = mmap.mmap(descriptor, size)
        self.arrays: Arrays = {
            name: np.frombuffer(
                self._map, spec.dtype, int(np.prod(spec.shape, dtype=np.int64)), offsets[name]
            ).reshape(spec.shape)
            for name, spec in specs.items()
        }

    @classmethod
    def create(cls, specs: Mapping[str, ArraySpec]) -> SharedArena:
        """New memory, all zero."""
        check_store_order(platform.machine())
        descriptor = os.memfd_create("rookery", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, layout(specs)[1])
        return cls(descriptor, specs)

    def close(self) -> None:
        """Let go of the descriptor; the mapping lives as long as its arrays are referenced."""
        os.close(self.descriptor)


def check_store_order(machine: str) -> None:
    """Refuse a processor that may reorder stores."""
    if machine.lower() not in ("x86_64", "amd64"):
        raise UserError(
            f"engine local shares memory in a way that only x86-64 processors keep in order, and "
            f"this is {machine}; use --engine inline, or mpi"
        )


def layout(specs: Mapping[str, ArraySpec]) -> tuple[dict[str, int], int]:
    """Where each array of ``specs`` begins, and the bytes of all."""
    offsets: dict[str, int] = {}
    end = 0
    for name, spec in specs.items():
        offsets[name] = end
        end += -(-spec.num_bytes // _ALIGN) * _ALIGN
    return offsets, max(end, _ALIGN)
