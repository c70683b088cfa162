"""Weights and optimizer statistics that many workers write without a lock (Hogwild).

Recht et al. (https://arxiv.org/abs/1106.5730): gradients are small and come often, so a step that
overwrites a bit of another costs less than waiting for it. What must not be lost is counted, and
the statistics of observations are kept, in a place of each worker's own, and added up by whoever
reads; so both are exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rookery.core.ports import End, Kind
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.nets.normalizer import Moments, RunningMoments
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig, statistic_names
from rookery.transport.local_port import LocalPort

STEPS, UPDATES, APPLIED, ENDED = range(4)
"""What each worker counts: environment steps, updates, gradients applied; and that it has ended."""
PREPARING, GOING, OVER = range(3)
"""The state of the run."""


def hogwild_specs(
    num_workers: int,
    num_params: int,
    optimizer: OptimizerConfig,
    moments: Mapping[str, tuple[int, ...]],
    *,
    shared_statistics: bool,
) -> dict[str, ArraySpec]:
    """The arrays of :class:`HogwildMemory`; ``moments`` are the shapes of what is normalised."""
    rows = 1 if shared_statistics else num_workers
    specs = {
        "state": ArraySpec((8,), np.dtype(np.int64)),
        # A cache line a worker; the last row is what was there before any of them.
        "ledger": ArraySpec((num_workers + 1, 8), np.dtype(np.int64)),
        "weights": ArraySpec((num_params,), np.dtype(np.float32)),
        "gradient": ArraySpec((num_params,), np.dtype(np.float32)),
    }
    for name in statistic_names(optimizer):
        specs[f"statistic/{name}"] = ArraySpec((rows, num_params), np.dtype(np.float32))
    for name, shape in moments.items():
        size = 1 + 2 * int(np.prod(shape, dtype=int))
        specs[f"pages/{name}"] = ArraySpec((num_workers, 2, size), np.dtype(np.float64))
        specs[f"turns/{name}"] = ArraySpec((num_workers, 8), np.dtype(np.int64))
    return specs


class HogwildMemory:
    """What the workers share."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.weights = torch.from_numpy(arrays["weights"])
        self.gradient = torch.from_numpy(arrays["gradient"])
        """The first worker's last one, to be looked at."""
        self.ledger = arrays["ledger"]
        self.num_workers = len(self.ledger) - 1
        self._statistics = {
            name.removeprefix("statistic/"): rows
            for name, rows in arrays.items()
            if name.startswith("statistic/")
        }
        self.shares_statistics = all(len(rows) == 1 for rows in self._statistics.values())

    @property
    def state(self) -> int:
        """Preparing, going or over."""
        return int(self.arrays["state"][0])

    @state.setter
    def state(self, value: int) -> None:
        self.arrays["state"][0] = value

    def total(self, column: int) -> int:
        """A count of all workers together, and of the run before them."""
        return int(self.ledger[:, column].sum())

    def count(self, worker: int, column: int, number: int = 1) -> None:
        """Add to a worker's own count."""
        self.ledger[worker, column] += number

    def statistics(self, worker: int) -> dict[str, Tensor]:
        """Optimizer statistics that ``worker`` uses: everyone's, or its own."""
        return {
            name: torch.from_numpy(rows[worker % len(rows)])
            for name, rows in self._statistics.items()
        }

    def spread_statistics(self) -> None:
        """Give every worker the first one's statistics."""
        for rows in self._statistics.values():
            rows[1:] = rows[0]

    def pool(self, name: str, shape: tuple[int, ...], worker: int) -> SlotPool:
        """``worker``'s end of the statistics called ``name``."""
        arrays = self.arrays
        return SlotPool(arrays[f"pages/{name}"], arrays[f"turns/{name}"][:, 0], shape, worker)


@dataclass(frozen=True)
class SharedWeightsPort(LocalPort):
    """One set of weights that all read and write, without a lock."""

    name: ClassVar[str] = "weights"
    kind: ClassVar[Kind] = "memory"
    about: ClassVar[str] = "one set of weights that all read and write, without a lock"

    num_workers: int
    num_params: int
    optimizer: OptimizerConfig
    moments: Mapping[str, tuple[int, ...]]
    shared_statistics: bool = True

    def traffic(self) -> tuple[int, str]:
        """A gradient in, the weights out."""
        return 2 * self.num_params * 4, "update"

    def layout(self) -> dict[str, ArraySpec]:
        """Weights, statistics and counts."""
        return hogwild_specs(
            self.num_workers,
            self.num_params,
            self.optimizer,
            self.moments,
            shared_statistics=self.shared_statistics,
        )

    def client(self, end: End) -> HogwildMemory:
        """A worker's view."""
        return HogwildMemory(end.arrays)

    def server(self, end: End) -> HogwildMemory:
        """The same of who keeps the session."""
        return HogwildMemory(end.arrays)


class SlotPool:
    """Moments of all workers' samples; each keeps its own in a slot that only it writes.

    A slot has two pages, written in turn: whoever is killed while writing one leaves the other.
    """

    def __init__(self, pages: Array, turns: Array, shape: tuple[int, ...], worker: int) -> None:
        self.pages, self.turns, self.shape, self.worker = pages, turns, shape, worker
        self.own = RunningMoments(shape)
        self.go_on()

    def go_on(self) -> None:
        """Go on from what is in the slot: a predecessor's, or what a resumed run began with."""
        self.own.take(self._read(self.worker))

    def begin_with(self, moments: Moments) -> None:
        """Go on from what was added before this run of it."""
        self.own.take(moments)
        self.write(moments)

    def add(self, samples: Tensor) -> Moments:
        """Add samples of this worker; those of all."""
        self.own.update(samples.cpu())
        self.write(self.own.moments)
        return self.merged()

    def write(self, moments: Moments) -> None:
        """Replace what this worker has added by ``moments``."""
        turn = int(self.turns[self.worker]) + 1
        page = self.pages[self.worker, turn % 2]
        page[:] = moments.packed().numpy()
        self.turns[self.worker] = turn

    def merged(self) -> Moments:
        """What all have added. Empty slots change nothing, not even by rounding."""
        total: Moments | None = None
        for worker in range(len(self.pages)):
            moments = self._read(worker)
            if moments.count > 0:
                total = moments if total is None else total.merged(moments)
        return RunningMoments(self.shape).moments if total is None else total

    def _read(self, worker: int) -> Moments:
        while True:
            turn = int(self.turns[worker])
            page = torch.from_numpy(self.pages[worker, turn % 2].copy())
            if int(self.turns[worker]) == turn:
                break
        if not turn:
            return RunningMoments(self.shape).moments
        return Moments.unpacked(page, self.shape)


class HogwildOptimizer(FlatOptimizer):
    """Applies the gradient of a worker's own weights to the shared ones, and copies those anew."""

    def __init__(
        self,
        config: OptimizerConfig,
        params: FlatParams,
        memory: HogwildMemory,
        worker: int,
        lr_scales: Sequence[tuple[slice, float]] = (),
    ) -> None:
        self.config, self.params, self.memory, self.worker = config, params, memory, worker
        self.lr_scales = [(part, scale) for part, scale in lr_scales if scale != 1.0]
        self.state = memory.statistics(worker) | {"step": torch.zeros(())}
        self.staleness: list[int] = []
        """For each gradient applied: how many others were since the weights it came from."""
        self.copied_at = 0

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Apply the gradient; returns its norm. One that is not finite is not applied."""
        norm, memory = self._clip(), self.memory
        if not math.isfinite(norm):
            return norm
        applied = memory.total(APPLIED)
        self.staleness.append(applied - self.copied_at)
        self.state["step"].fill_(applied if memory.shares_statistics else self._own_applied())
        self._step_parts(lr, self.params.grad.cpu(), memory.weights, slice(None))
        memory.count(self.worker, APPLIED)
        if self.worker == 0:
            memory.gradient.copy_(self.params.grad)
        self.pull()
        return norm

    def _own_applied(self) -> int:
        ledger = self.memory.ledger
        return int(ledger[self.worker, APPLIED] + ledger[-1, APPLIED])

    def copied_state(self) -> dict[str, Tensor]:
        """The statistics as they are just now: others write on while these are saved."""
        return {name: tensor.clone() for name, tensor in self.state.items()}

    def pull(self) -> None:
        """Copy the shared weights."""
        self.copied_at = self.memory.total(APPLIED)
        self.params.data.copy_(self.memory.weights)
