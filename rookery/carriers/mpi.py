"""Messages between the ranks of an MPI job: typed buffers, never pickles.

A blocking MPI call spins on its core. With more ranks than cores that starves whoever has work to
do, so every wait here is a request that is tested again and again: at first at once, giving way to
whoever else wants the core, then more and more rarely. MPI moves messages on only while it is
asked, so whoever has a core to itself asks for longer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import UserError
from rookery.core.spec import Array

FIRST_PAUSE_SECS = 20e-6


class Patience(NamedTuple):
    """How a rank waits: seconds of asking without a pause, and the longest pause after that."""

    asking_secs: float
    longest_pause_secs: float


ALONE_ON_A_CORE = Patience(5e-3, 5e-4)
CROWDED = Patience(2e-4, 1e-3)
ROLLOUT, HEART = 1, 2
"""Tags of messages."""


class Seat(NamedTuple):
    """Where a rank sits."""

    rank: int
    pid: int
    host: str


class World:
    """All ranks of the job; ``by_srun`` says that Slurm started them."""

    def __init__(self, *, by_srun: bool = False) -> None:
        self.mpi = _started_mpi(by_srun)
        self.comm = self.mpi.COMM_WORLD
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        self.on_poll: Callable[[], None] = lambda: None
        """Called while waiting."""
        self.patience = CROWDED
        self.waited_secs = 0.0
        self._beat = np.zeros(1)
        self.seats = [
            Seat(rank, int(pid), host)
            for rank, (pid, _, host) in enumerate(
                text.partition(" ")
                for text in self.gather_text(f"{os.getpid()} {socket.gethostname()}")
            )
        ]
        _unname_shared_memory(self.comm.Barrier)
        self.patience = _patience(self.seats, socket.gethostname())

    def name(self, rank: int) -> str:
        """``rank 3 on node-b``."""
        return f"rank {rank} on {self.seats[rank].host}"

    def wait(self, *requests: Any) -> None:
        """Until all requests are done, sleeping between looks."""
        begun = time.monotonic()
        pauses = self._pauses()
        while not self.mpi.Request.Testall(list(requests)):
            next(pauses)
        self.waited_secs += time.monotonic() - begun

    def _pauses(self) -> Iterator[None]:
        """What happens between two looks of one wait."""
        begun, pause = time.monotonic(), FIRST_PAUSE_SECS
        while time.monotonic() - begun < self.patience.asking_secs:
            self.on_poll()
            os.sched_yield()
            yield
        while True:
            self.on_poll()
            time.sleep(pause)
            pause = min(pause * 1.5, self.patience.longest_pause_secs)
            yield

    def share(self, buffer: Array) -> None:
        """Rank 0's ``buffer`` to all."""
        self.wait(self.comm.Ibcast(buffer, root=0))

    def send(self, buffer: Array) -> None:
        """``buffer`` to rank 0."""
        self.wait(self.comm.Isend(buffer, dest=0, tag=ROLLOUT))

    def receive(self, buffers: dict[int, Array]) -> dict[int, float]:
        """From each rank its buffer; seconds until each had come."""
        begun = time.monotonic()
        arrived: dict[int, float] = {}
        left = {
            rank: self.comm.Irecv(buffer, source=rank, tag=ROLLOUT)
            for rank, buffer in buffers.items()
        }
        pauses = self._pauses()
        while left:
            here = [rank for rank, request in left.items() if request.Test()]
            for rank in here:
                del left[rank]
                arrived[rank] = time.monotonic() - begun
            if left and not here:
                next(pauses)
        self.waited_secs += time.monotonic() - begun
        return arrived

    def gather_text(self, text: str, num_bytes: int = 512) -> list[str]:
        """What every rank says, at every rank."""
        mine = np.zeros(num_bytes, np.uint8)
        data = text.encode()[:num_bytes]
        mine[: len(data)] = np.frombuffer(data, np.uint8)
        rows = np.zeros((self.size, num_bytes), np.uint8)
        self.wait(self.comm.Iallgather(mine, rows))
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]

    def beat(self) -> None:
        """Tell rank 0 that this rank lives."""
        self.comm.Isend(self._beat, dest=0, tag=HEART).Free()

    def heard(self) -> list[int]:
        """Ranks that have told so since the last call (at rank 0)."""
        ranks, status, cell = [], self.mpi.Status(), np.zeros(1)
        while self.comm.Iprobe(source=self.mpi.ANY_SOURCE, tag=HEART, status=status):
            self.comm.Recv(cell, source=status.Get_source(), tag=HEART)
            ranks.append(status.Get_source())
        return ranks

    def leave(self) -> None:
        """End MPI, all ranks together: a launcher kills whoever is left when one of them fails."""
        self.wait(self.comm.Ibarrier())
        self.heard()  # what was told and never asked for; MPI does not end with it in the air
        self.mpi.Finalize()

    def abort(self, code: int) -> None:
        """End every rank at once."""
        self.comm.Abort(code)


class MpiGroup:
    """A :class:`~rookery.core.group.Group` of all ranks."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rank, self.size = world.rank, world.size

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up over all ranks."""
        values = tensor.detach().cpu().reshape(-1).numpy()
        total = np.empty_like(values)
        self.world.wait(self.world.comm.Iallreduce(values, total, op=self.world.mpi.SUM))
        with torch.no_grad():
            return tensor.copy_(torch.from_numpy(total).view(tensor.shape))

    def gather(self, rows: Array) -> list[Array]:
        """Rows of all ranks, at the first."""
        world = self.world
        mine = np.ascontiguousarray(rows, dtype=np.float64)
        counts = np.zeros(self.size, np.int64)
        world.wait(world.comm.Iallgather(np.array([mine.size], np.int64), counts))
        ends = np.cumsum(counts)
        everything = np.empty(int(ends[-1]) if self.rank == 0 else 0)
        places = None if self.rank else [everything, counts, ends - counts, world.mpi.DOUBLE]
        world.wait(world.comm.Igatherv(mine, places, root=0))
        if self.rank:
            return []
        parts = np.split(everything, ends[:-1])
        return [part.reshape(-1, rows.shape[1]) for part in parts]

    def first(self, values: Array) -> Array:
        """Rank 0's values."""
        shared = np.array(values, dtype=np.float64)
        self.world.share(shared)
        return shared


def _started_mpi(by_srun: bool) -> Any:
    """mpi4py's MPI, initialised."""
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"engine mpi needs mpi4py and an MPI library ({error}); "
            'pip install "rookery[mpi]" brings both'
        ) from error
    if by_srun and "ch4:ucx ofi" in MPI.Get_library_version():
        # With ucx MPICH tells the others 4 KiB of whatever its memory holds, in lines of 1076
        # characters, of which Slurm reads 1024. With ofi it tells a short address.
        os.environ.setdefault("MPIR_CVAR_CH4_NETMOD", "ofi")
    MPI.Init_thread()
    return MPI


def _patience(seats: list[Seat], host: str) -> Patience:
    """By whether the ranks of this host have a core each."""
    here = sum(seat.host == host for seat in seats)
    return ALONE_ON_A_CORE if here <= len(os.sched_getaffinity(0)) else CROWDED


def _unname_shared_memory(barrier: Callable[[], None]) -> None:
    """Take the names from the memory that MPICH's ranks share on a host.

    They all have it mapped by now. Without a name it is gone with the last of them, also when the
    job is killed; with one it would stay.
    """
    barrier()
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            path = line.rpartition(" ")[2]
            if path.startswith("/dev/shm/mpich_shm"):
                with contextlib.suppress(OSError):
                    os.unlink(path)
