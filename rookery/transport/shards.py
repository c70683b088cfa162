"""Gradients to those who keep a part of the weights each, and weights back.

A worker has one question under way at each of them: it *pulls*, or it *pushes* the gradient of that
part and waits for newer weights. It counts what it has asked, the server what it has answered;
every count has one writer. Until its question is answered a worker's gradient lies where it was
written, and the server reads it there. Weights are published once for all workers.

A worker that begins, in whichever life, pulls first. A server that takes another's place raises
the *epoch*: what was asked before is answered by nobody, and all pull anew. So nothing is applied
twice.

::

    # a worker                                   # the server
    client.push(gradient, lr=..., weight=...)    for request in server.take():
    if client.lost():                                ... server.gradient(request)
        client.pull()                                server.publish(version, weights, moments)
    if client.answered():                            server.answer(request, outcome, ...)
        answer = client.take(weights, moments)

Shapes: W workers, N weights of the largest part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rookery.core.ports import End, Kind
from rookery.core.spec import Array, Arrays, ArraySpec, under
from rookery.core.tensors import Tensors
from rookery.params.compression import Compression, Writer
from rookery.transport.weights import WeightsCell, WeightsPort

_INT, _REAL, _SINGLE = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.float32)
_LINE = 8
"""Counts of different writers lie on cache lines of their own."""
COUNT, EPOCH, VERSION, KIND, STEPS, FILLED, UNDER_WAY = range(7)
"""Of a question: its number; for which server; of which weights its gradient is; pull or push; all
steps that its worker has made; whether it brings statistics; whether its worker is in an update."""
STALENESS, OUTCOME = 2, 3
"""Of an answer, behind its number: how much older the gradient's weights were than the server's;
what became of it. ``STEPS`` are those of the run."""
LR, WEIGHT = 0, 1
PULL, PUSH = range(2)
PULLED, APPLIED, LATE, REFUSED = range(4)
"""What became of a question: there was no gradient; it was used; it was too old; it was not
finite."""
_PUSH, _CELL, _MOMENTS = "push/", "cell/", "moments/"
WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Request:
    """A worker's question."""

    worker: int
    number: int
    version: int
    pushes: bool
    lr: float
    weight: float
    filled: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question."""

    version: int
    """Of the weights that were taken."""
    staleness: int
    outcome: int
    steps: int
    """Of the run, as far as the server knows."""


@dataclass(frozen=True)
class ShardPort:
    """Gradients of one part of the weights, and the weights that they make."""

    name: ClassVar[str] = "shard"
    kind: ClassVar[Kind] = "call"
    about: ClassVar[str] = "gradients in, weights back, a part of both each"

    num_workers: int
    num_weights: int
    """Of the largest part."""
    compression: Compression
    moments: Mapping[str, tuple[int, ...]]
    """Shapes of the statistics that all workers have in common; the first part has them."""

    def traffic(self) -> tuple[int, str]:
        """A gradient in, weights back."""
        sent = sum(spec.num_bytes for spec in self.pushed().values())
        return sent + self.num_weights * 4, "gradient"

    def pushed(self) -> dict[str, ArraySpec]:
        """What travels of a gradient."""
        return {
            f"{_PUSH}{name}": spec
            for name, spec in self.compression.layout(self.num_weights).items()
        }

    def packed_moments(self) -> dict[str, ArraySpec]:
        """Number, mean and variance of each of the statistics, in a row."""
        return {
            f"{_MOMENTS}{name}": ArraySpec((1 + 2 * int(np.prod(shape, dtype=int)),), _REAL)
            for name, shape in self.moments.items()
        }

    def published(self) -> WeightsPort:
        """The cell of the weights and the statistics."""
        return WeightsPort(
            {WEIGHTS: ArraySpec((self.num_weights,), _SINGLE), **self.packed_moments()}
        )

    def layout(self) -> dict[str, ArraySpec]:
        """Counts, gradients and statistics of all workers; the weights once."""
        workers = self.num_workers
        return {
            "state": ArraySpec((_LINE,), _INT),
            "asked": ArraySpec((workers, _LINE), _INT),
            "terms": ArraySpec((workers, _LINE), _REAL),
            "answered": ArraySpec((workers, _LINE), _INT),
            **{name: spec.with_axes(workers) for name, spec in self.pushed().items()},
            **{name: spec.with_axes(workers) for name, spec in self.packed_moments().items()},
            **{f"{_CELL}{name}": spec for name, spec in self.published().layout().items()},
        }

    def client(self, end: End) -> ShardClient:
        """A worker's end."""
        return ShardClient(self, end)

    def server(self, end: End) -> ShardServer:
        """The end of the one who keeps this part."""
        return ShardServer(self, end)

    def for_one(self, client: int) -> ShardPort:
        """With one worker."""
        return replace(self, num_workers=1)

    def client_relay(self, arrays: Arrays) -> ShardSender:
        """Beside a worker."""
        return ShardSender(self, _Memory(arrays))

    def server_relay(self, end: End) -> ShardReceiver:
        """In the place of a worker."""
        return ShardReceiver(self, end)


@dataclass(frozen=True)
class KeptPort(WeightsPort):
    """What was saved last of all weights: servers that begin take their part of it."""

    name: ClassVar[str] = "kept"
    about: ClassVar[str] = "what was saved last, for servers that begin"

    def traffic(self) -> tuple[int, str]:
        """All of it."""
        num_bytes, _ = super().traffic()
        return num_bytes, "checkpoint"


class _Memory:
    """The arrays of the port."""

    def __init__(self, arrays: Arrays) -> None:
        self.state, self.terms = arrays["state"], arrays["terms"]
        self.asked, self.answered = arrays["asked"], arrays["answered"]
        self.pushed, self.moments = under(_PUSH, arrays), under(_MOMENTS, arrays)
        self.cell = WeightsCell(under(_CELL, arrays))

    @property
    def epoch(self) -> int:
        """Of the server; 0 before the first."""
        return int(self.state[EPOCH])

    def of_length(self, num: int) -> None:
        """This part has so many weights."""
        self.cell.values[WEIGHTS] = self.cell.values[WEIGHTS][:num]

    def waits(self, worker: int) -> bool:
        """Whether a question has no answer yet."""
        return bool(self.asked[worker, COUNT] != self.answered[worker, COUNT])


class ShardClient:
    """One worker's end."""

    def __init__(self, port: ShardPort, end: End) -> None:
        self.compression, self.end = port.compression, end
        self.memory, worker = _Memory(end.arrays), end.replica
        self.row, self.terms = self.memory.asked[worker], self.memory.terms[worker]
        self.answer_row = self.memory.answered[worker]
        self.pushed = {name: array[worker] for name, array in self.memory.pushed.items()}
        self.moments = {name: array[worker] for name, array in self.memory.moments.items()}
        self.epoch, self.version = 0, -1
        self.shared: Tensors = {
            name: torch.zeros_like(value)
            for name, value in self.memory.cell.values.items()
            if name != WEIGHTS
        }
        self.row[UNDER_WAY] = 0

    def of_length(self, num: int) -> ShardClient:
        """The end of a part of ``num`` weights."""
        self.memory.of_length(num)
        self.writer: Writer = self.compression.writer(num)
        return self

    def count_steps(self, steps: int) -> None:
        """This worker has made so many more; to be told with the next question."""
        self.row[STEPS] += steps

    def begin(self) -> None:
        """An update begins."""
        self.row[UNDER_WAY] = 1

    def end_update(self) -> None:
        """It is made."""
        self.row[UNDER_WAY] = 0

    def pull(self, moments: Arrays | None = None) -> None:
        """Ask for weights; ``moments``, packed, are added to those of all."""
        self.epoch = self.memory.epoch
        self._ask(PULL, moments)

    def push(
        self, gradient: Tensor, *, lr: float, weight: float, moments: Arrays | None = None
    ) -> None:
        """Ask for the weights that ``gradient`` of ``weight`` samples makes."""
        self.writer.write(gradient, self.pushed)
        self.terms[LR], self.terms[WEIGHT] = lr, weight
        self._ask(PUSH, moments)

    def _ask(self, kind: int, moments: Arrays | None) -> None:
        for name, packed in (moments or {}).items():
            self.moments[name][...] = packed
        row = self.row
        row[KIND], row[FILLED] = kind, bool(moments)
        row[VERSION], row[EPOCH] = self.version, self.epoch
        row[COUNT] += 1  # last: from here on the gradient is the server's to read
        self.end.notify_peers()

    def shared_moments(self) -> Tensors:
        """The statistics of all workers, packed, as they were taken; those without a sample are
        left out."""
        taken = self.shared.items()
        return {name.removeprefix(_MOMENTS): row for name, row in taken if row[0] > 0}

    def waits(self) -> bool:
        """Whether it has asked and not been answered."""
        return bool(self.row[COUNT] != self.answer_row[COUNT])

    def lost(self) -> bool:
        """Whether there is another server than the one that was asked."""
        return self.epoch != self.memory.epoch

    def take(self, into: Tensor) -> Answer | None:
        """Copy the newest weights ``into`` ``[N]``; None if the server is another by now."""
        told = self.answer_row.copy()
        version = self.memory.cell.get(-1, {**self.shared, WEIGHTS: into})
        if version is None or self.lost():
            return None
        self.version = version
        return Answer(version, int(told[STALENESS]), int(told[OUTCOME]), int(told[STEPS]))


class ShardServer:
    """The end of the one who keeps a part."""

    def __init__(self, port: ShardPort, end: End) -> None:
        self.port, self.end, self.memory = port, end, _Memory(end.arrays)
        self.seen = np.full(port.num_workers, -1)
        self.scratch = torch.zeros(0)

    def of_length(self, num: int) -> ShardServer:
        """The end of a part of ``num`` weights."""
        self.memory.of_length(num)
        self.scratch = torch.zeros(num)
        return self

    @property
    def version(self) -> int:
        """Of what was published last, by whichever server; -1 before."""
        return self.memory.cell.version

    @property
    def applied(self) -> int:
        """Updates of the run that the weights published last had had; -1 before."""
        return int(self.memory.state[COUNT]) - 1

    def open(self) -> None:
        """Begin: what was asked of a server before is void, and what it was writing is too."""
        self.memory.state[EPOCH] += 1
        self.memory.cell.mend()
        self.end.notify_peers()

    def _has_new(self, worker: int) -> bool:
        row = self.memory.asked[worker]
        return bool(row[COUNT] != self.seen[worker] and row[EPOCH] == self.memory.epoch)

    def waiting(self) -> bool:
        """Whether there are questions that were not taken."""
        asked = self.memory.asked
        new = (asked[:, COUNT] != self.seen) & (asked[:, EPOCH] == self.memory.epoch)
        return bool(new.any()) and self.memory.epoch > 0

    def take(self) -> list[Request]:
        """Those, each once; who comes first changes, so that nobody is always late."""
        workers = np.roll(np.arange(self.port.num_workers), -self.version)
        return [self._taken(int(worker)) for worker in workers if self._has_new(int(worker))]

    def _taken(self, worker: int) -> Request:
        row, terms = self.memory.asked[worker].copy(), self.memory.terms[worker]
        self.seen[worker] = row[COUNT]
        return Request(
            worker,
            int(row[COUNT]),
            int(row[VERSION]),
            bool(row[KIND] == PUSH),
            float(terms[LR]),
            float(terms[WEIGHT]),
            bool(row[FILLED]),
        )

    def gradient(self, request: Request) -> Tensor:
        """``[N]``, until the next call or until the request is answered."""
        arrays = {name: array[request.worker] for name, array in self.memory.pushed.items()}
        return self.port.compression.read(arrays, self.scratch)

    def moments(self, request: Request) -> Tensors:
        """The statistics that the request brought, packed."""
        if not request.filled:
            return {}
        return {
            name: torch.from_numpy(array[request.worker].copy())
            for name, array in self.memory.moments.items()
        }

    def publish(
        self, version: int, weights: Tensor, moments: Tensors, *, applied: int = -1
    ) -> None:
        """Make these, of so many updates, what all take from now on; ``moments`` are packed."""
        self.memory.state[COUNT] = applied + 1
        packed = {f"{_MOMENTS}{name}": value for name, value in moments.items()}
        self.memory.cell.publish(version, {WEIGHTS: weights, **packed})

    def answer(self, request: Request, outcome: int, *, staleness: int, steps: int) -> None:
        """The worker may take what is published."""
        row = self.memory.answered[request.worker]
        row[STALENESS], row[OUTCOME], row[STEPS] = staleness, outcome, steps
        row[COUNT] = request.number  # last
        if self.end.peers:
            self.end.peers[request.worker].notify()

    def steps(self) -> int:
        """That all workers have told of."""
        return int(self.memory.asked[:, STEPS].sum())

    def in_update(self) -> bool:
        """Whether some worker is in the middle of an update."""
        return bool(self.memory.asked[:, UNDER_WAY].any())

    def wait(self, timeout_secs: float) -> None:
        """Sleep until somebody may have asked."""
        self.end.own.wait(timeout_secs)


# ---- between hosts -------------------------------------------------------------------------------


def _asking(port: ShardPort) -> dict[str, ArraySpec]:
    """What goes to the server: a question, its gradient and its statistics, where it has them."""
    return {
        "asked": ArraySpec((_LINE,), _INT),
        "terms": ArraySpec((_LINE,), _REAL, finite=True),
        **port.pushed(),
        **port.packed_moments(),
    }


def _answering(port: ShardPort) -> dict[str, ArraySpec]:
    """What comes back: an epoch, or an answer with weights and statistics."""
    return {
        "epoch": ArraySpec((1,), _INT),
        "answered": ArraySpec((_LINE,), _INT),
        "version": ArraySpec((1,), _INT),
        **port.published().params,
    }


class ShardSender:
    """Carries a worker's questions out and what is said to them in."""

    def __init__(self, port: ShardPort, memory: _Memory) -> None:
        self.memory, self.sent = memory, int(memory.asked[0, COUNT])
        self.sends, self.receives = _asking(port), _answering(port)

    def next(self) -> Arrays | None:
        """The newest question, if it was not sent; what it does not bring is left out."""
        memory, row = self.memory, self.memory.asked[0].copy()
        if row[COUNT] == self.sent:
            return None
        self.sent = int(row[COUNT])
        frame: Arrays = {"asked": row, "terms": memory.terms[0]}
        if row[KIND] == PUSH:
            frame |= {f"{_PUSH}{name}": array[0] for name, array in memory.pushed.items()}
        if row[FILLED]:
            frame |= {f"{_MOMENTS}{name}": array[0] for name, array in memory.moments.items()}
        return frame

    def accept(self, frame: Arrays) -> None:
        """What the server says."""
        memory = self.memory
        if "epoch" in frame:
            memory.state[EPOCH] = frame["epoch"][0]
            return
        cell = memory.cell
        cell.publish_arrays(int(frame["version"][0]), {**cell.arrays, **frame})
        memory.answered[0, 1:] = frame["answered"][1:]
        memory.answered[0, COUNT] = frame["answered"][COUNT]


class ShardReceiver:
    """Asks in the place of a worker of another host, and carries the answers back."""

    def __init__(self, port: ShardPort, end: End) -> None:
        self.end, self.memory, self.worker = end, _Memory(end.arrays), end.replica
        self.begun_steps = int(self.memory.asked[self.worker, STEPS])
        self.epoch = 0
        self.ours, self.theirs = -1, -1
        """Numbers of the question that waits, here and there."""
        self.copy = {
            name: torch.empty_like(value) for name, value in self.memory.cell.values.items()
        }
        self.sends, self.receives = _answering(port), _asking(port)

    def next(self) -> Arrays | None:
        """An epoch, or an answer."""
        memory = self.memory
        if memory.epoch != self.epoch:
            self.epoch, self.ours = memory.epoch, -1
            return {"epoch": np.array([self.epoch])}
        row: Array = memory.answered[self.worker].copy()
        if row[COUNT] != self.ours:
            return None
        self.ours, row[COUNT] = -1, self.theirs
        version = memory.cell.get(-1, self.copy)
        if version is None or memory.epoch != self.epoch:
            return None
        values = {
            name: value.numpy()
            for name, value in self.copy.items()
            if name == WEIGHTS or value[0] > 0  # there is no sample: it is left out
        }
        return {"answered": row, "version": np.array([version]), **values}

    def accept(self, frame: Arrays) -> None:
        """A question; one to a server that is gone will be asked anew."""
        theirs: Array = frame["asked"]
        if theirs[EPOCH] != self.epoch or self.epoch != self.memory.epoch:
            return
        pushes = bool(theirs[KIND] == PUSH)
        if pushes and self.memory.waits(self.worker):
            raise RuntimeError("a gradient came before the question before it was answered")
        if pushes and not 0 <= theirs[VERSION] <= self.memory.cell.version:
            raise RuntimeError(f"a gradient of weights {theirs[VERSION]}, which there are not yet")
        row = self.memory.asked[self.worker]
        if theirs[STEPS] < 0 or self.begun_steps + theirs[STEPS] < row[STEPS]:
            raise RuntimeError("a worker has made less steps than before")
        self._copy(frame, pushes=pushes)
        row[KIND], row[FILLED] = theirs[KIND], any(n.startswith(_MOMENTS) for n in frame)
        row[VERSION], row[EPOCH] = theirs[VERSION], theirs[EPOCH]
        row[STEPS] = self.begun_steps + theirs[STEPS]
        self.ours, self.theirs = int(row[COUNT]) + 1, int(theirs[COUNT])
        row[COUNT] = self.ours
        self.end.notify_peers()

    def _copy(self, frame: Arrays, *, pushes: bool) -> None:
        memory, worker = self.memory, self.worker
        memory.terms[worker] = frame["terms"]
        if pushes:
            for name, array in memory.pushed.items():
                array[worker] = frame[f"{_PUSH}{name}"]
        for name, array in memory.moments.items():
            if f"{_MOMENTS}{name}" in frame:
                array[worker] = frame[f"{_MOMENTS}{name}"]
