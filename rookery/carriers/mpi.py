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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import UserError
from rookery.core.group import Waiting
from rookery.core.ports import Relay
from rookery.core.spec import Array, Arrays, ArraySpec

FIRST_PAUSE_SECS = 20e-6


class Patience(NamedTuple):
    """How a rank waits: seconds of asking without a pause, and the longest pause after that."""

    asking_secs: float
    longest_pause_secs: float


ALONE_ON_A_CORE = Patience(5e-3, 5e-4)
CROWDED = Patience(2e-4, 1e-3)
FRAME, WORD = 1, 2
"""Tags of messages: frames of relays; what rank 0 tells each of the others."""
_LINE = 64
"""Arrays in a frame begin at multiples of it."""


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
        pauses = self.pauses()
        while not self.mpi.Request.Testall(list(requests)):
            next(pauses)
        self.waited_secs += time.monotonic() - begun

    def pauses(self) -> Iterator[None]:
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

    def share_bytes(self, data: bytes) -> bytes:
        """Rank 0's ``data`` at every rank."""
        size = np.array([len(data)], np.int64)
        self.share(size)
        buffer = np.zeros(size[0], np.uint8)
        if self.rank == 0:
            buffer[:] = np.frombuffer(data, np.uint8)
        self.share(buffer)
        return buffer.tobytes()

    def gather_text(self, text: str, num_bytes: int = 512) -> list[str]:
        """What every rank says, at every rank."""
        mine = np.zeros(num_bytes, np.uint8)
        data = text.encode()[:num_bytes]
        mine[: len(data)] = np.frombuffer(data, np.uint8)
        rows = np.zeros((self.size, num_bytes), np.uint8)
        self.wait(self.comm.Iallgather(mine, rows))
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]

    def tell(self, word: int) -> None:
        """One number from rank 0 to all others."""
        told = np.array([word], np.int64)
        self.wait(*[self.comm.Isend(told, dest=rank, tag=WORD) for rank in range(1, self.size)])

    def told(self) -> int | None:
        """What rank 0 has told, if it has."""
        if not self.comm.Iprobe(source=0, tag=WORD):
            return None
        word = np.zeros(1, np.int64)
        self.comm.Recv(word, source=0, tag=WORD)
        return int(word[0])

    def leave(self) -> None:
        """End MPI, all ranks together: a launcher kills whoever is left when one of them fails."""
        self.wait(self.comm.Ibarrier())
        self.mpi.Finalize()

    def abort(self, code: int) -> None:
        """End every rank at once."""
        self.comm.Abort(code)


class MpiWakeup:
    """Moves frames while a role waits."""

    def __init__(self, world: World, bridge: Bridge) -> None:
        self.world, self.bridge = world, bridge

    def notify(self) -> None:
        """What was written is sent at the next look."""

    def wait(self, timeout_secs: float) -> None:
        """Until a frame has come, at most ``timeout_secs``."""
        deadline = time.monotonic() + timeout_secs
        for _ in self.world.pauses():
            if self.bridge.pump() or time.monotonic() >= deadline:
                return


class Bridge:
    """Carries the frames of relays between ranks, those of two ranks in order.

    Cells go first, so that whoever is let go on finds the newest weights.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self._relays: dict[int, tuple[Relay, int]] = {}
        self._order: list[int] = []
        self._buffers: dict[int, Array] = {}
        self._sending: list[tuple[Any, Array]] = []
        self._spare: dict[int, list[Array]] = {}

    def add(self, number: int, relay: Relay, rank: int, *, first: bool) -> None:
        """Carry what ``relay`` exchanges with the one of the same ``number`` at ``rank``."""
        self._relays[number] = (relay, rank)
        self._order.insert(0 if first else len(self._order), number)

    def pump(self) -> bool:
        """Send and receive all that can be now; whether anything came."""
        came = self._receive()
        for number in self._order:
            relay, rank = self._relays[number]
            while (frame := relay.next()) is not None:
                self._send(rank, number, relay.sends, frame)
        self._reap()
        return came

    def _receive(self) -> bool:
        mpi, status, came = self.world.mpi, self.world.mpi.Status(), False
        while (message := self.world.comm.Improbe(mpi.ANY_SOURCE, FRAME, status)) is not None:
            size = status.Get_count(mpi.BYTE)
            buffer = self._buffers.get(size)
            if buffer is None:
                buffer = self._buffers[size] = np.empty(size, np.uint8)
            message.Recv([buffer, mpi.BYTE])
            number, mask = buffer[:16].view(np.int64).tolist()
            if number in self._relays:
                relay, _ = self._relays[number]
                relay.accept(_unpacked(relay.receives, mask, buffer))
            came = True
        return came

    def _send(self, rank: int, number: int, specs: Mapping[str, ArraySpec], frame: Arrays) -> None:
        mask = sum(1 << bit for bit, name in enumerate(specs) if name in frame)
        size = _LINE + sum(_padded(spec) for name, spec in specs.items() if name in frame)
        spare = self._spare.get(size)
        buffer = spare.pop() if spare else np.empty(size, np.uint8)
        buffer[:16].view(np.int64)[:] = number, mask
        for name, part in _unpacked(specs, mask, buffer).items():
            part[...] = frame[name]
        request = self.world.comm.Isend([buffer, self.world.mpi.BYTE], dest=rank, tag=FRAME)
        self._sending.append((request, buffer))

    def _reap(self) -> None:
        """Take back the memory of what was sent."""
        left = []
        for request, buffer in self._sending:
            if request.Test():
                self._spare.setdefault(len(buffer), []).append(buffer)
            else:
                left.append((request, buffer))
        self._sending = left

    def close(self) -> None:
        """Send nothing more, and receive until all that was sent has come somewhere."""
        self._relays.clear()
        self._order.clear()
        pauses = self.world.pauses()
        while self._sending:
            self._receive()
            self._reap()
            next(pauses)
        barrier = self.world.comm.Ibarrier()
        while not barrier.Test():
            self._receive()
            next(pauses)
        self._receive()


def _padded(spec: ArraySpec) -> int:
    return -(-spec.num_bytes // _LINE) * _LINE


def _unpacked(specs: Mapping[str, ArraySpec], mask: int, buffer: Array) -> Arrays:
    """The arrays of ``specs`` that ``mask`` names, as they lie in ``buffer`` after its header."""
    found: Arrays = {}
    start = _LINE
    for bit, (name, spec) in enumerate(specs.items()):
        if mask >> bit & 1:
            part = buffer[start : start + spec.num_bytes]
            found[name] = part.view(spec.dtype).reshape(spec.shape)
            start += _padded(spec)
    return found


class MpiGroup:
    """A :class:`~rookery.core.group.Group` of the ranks of ``comm``."""

    def __init__(self, world: World, comm: Any) -> None:
        self.world, self.comm = world, comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.waiting: Waiting = contextlib.nullcontext

    def _wait(self, request: Any) -> None:
        with self.waiting():
            self.world.wait(request)

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up over all ranks."""
        values = tensor.detach().cpu().reshape(-1).numpy()
        total = np.empty_like(values)
        self._wait(self.comm.Iallreduce(values, total, op=self.world.mpi.SUM))
        with torch.no_grad():
            return tensor.copy_(torch.from_numpy(total).view(tensor.shape))

    def gather(self, rows: Array) -> list[Array]:
        """Rows of all ranks, at the first."""
        mine = np.ascontiguousarray(rows, dtype=np.float64)
        counts = np.zeros(self.size, np.int64)
        self._wait(self.comm.Iallgather(np.array([mine.size], np.int64), counts))
        ends = np.cumsum(counts)
        everything = np.empty(int(ends[-1]) if self.rank == 0 else 0)
        places = None if self.rank else [everything, counts, ends - counts, self.world.mpi.DOUBLE]
        self._wait(self.comm.Igatherv(mine, places, root=0))
        if self.rank:
            return []
        parts = np.split(everything, ends[:-1])
        return [part.reshape(-1, rows.shape[1]) for part in parts]

    def first(self, values: Array) -> Array:
        """Rank 0's values."""
        shared = np.array(values, dtype=np.float64)
        self._wait(self.comm.Ibcast(shared, root=0))
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
