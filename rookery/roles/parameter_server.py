"""A parameter server: keeps one part of the weights and steps it along the gradients that come.

When it steps is up to its rule: in rounds, as soon as enough gradients of the newest weights are
there (:class:`Rounds`), or at each gradient (:class:`Arrivals`).

Shapes: N weights of this part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rookery.core.heartbeat import Heartbeat
from rookery.core.patience import Patience
from rookery.core.ports import BaseRole, ParamSource
from rookery.core.spec import Arrays, ArraySpec, zeros
from rookery.core.tensors import Tensors
from rookery.nets.normalizer import Moments, RunningMoments
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig, statistic_names
from rookery.transport.calls import CallServer
from rookery.transport.shards import (
    APPLIED,
    LATE,
    PULLED,
    REFUSED,
    WEIGHTS,
    Request,
    ShardServer,
)

_LOG = logging.getLogger(__name__)

STATISTIC, MOMENTS = "statistic/", "moments/"
METRICS = ("server/updates", "server/waits_for", "server/late", "server/refused")
"""Steps of the optimizer; gradients that one takes now; gradients that were too old, and that were
not finite."""


ALIGNED = 16
"""Kernels take so many numbers at once and round those that are left over in another way. Parts
begin where the kernel of a whole vector would begin anew, so that parts have the same bits."""


def parts_of(num_weights: int, num_servers: int) -> list[slice]:
    """Which of all weights each server keeps: equal parts, but for a few numbers."""
    unit = ALIGNED if num_weights >= ALIGNED * num_servers else 1
    units = num_weights // unit
    bounds = [units * server // num_servers * unit for server in range(num_servers)]
    return [slice(*pair) for pair in pairwise([*bounds, num_weights])]


def kept_specs(
    num_weights: int, optimizer: OptimizerConfig, moments: Mapping[str, tuple[int, ...]]
) -> dict[str, ArraySpec]:
    """What is saved of so many weights."""
    single, real = np.dtype(np.float32), np.dtype(np.float64)
    return {
        WEIGHTS: ArraySpec((num_weights,), single),
        **{
            f"{STATISTIC}{name}": ArraySpec((num_weights,), single)
            for name in statistic_names(optimizer)
        },
        "step": ArraySpec((1,), np.dtype(np.int64)),
        **{
            f"{MOMENTS}{name}": ArraySpec((1 + 2 * int(np.prod(shape, dtype=int)),), real)
            for name, shape in moments.items()
        },
    }


class PartOptimizer(FlatOptimizer):
    """Steps a vector that is nobody's parameters; gradients come clipped."""

    def __init__(self, config: OptimizerConfig, num: int) -> None:
        self.config, self.lr_scales = config, []
        self.data = torch.zeros(num)
        self.state = {name: torch.zeros(num) for name in statistic_names(config)}
        self.state["step"] = torch.zeros(())

    @torch.no_grad()
    def apply(self, grad: Tensor, lr: float) -> None:
        """Step along ``grad`` ``[N]``."""
        self._step_parts(lr, grad, self.data, slice(None))


class Shard:
    """One part of the weights, what the optimizer keeps of it, and the workers that ask for it."""

    def __init__(
        self,
        server: ShardServer,
        optimizer: PartOptimizer,
        moments: Mapping[str, tuple[int, ...]],
        *,
        start_steps: int,
        warn: Callable[[str], None],
    ) -> None:
        self.server, self.optimizer, self.warn = server, optimizer, warn
        self.start_steps, self.version = start_steps, -1
        self.moments = {name: RunningMoments(shape) for name, shape in moments.items()}
        self.rows = self._packed()
        """The statistics, packed."""
        self.newer = False
        """Whether they are newer than what was published."""
        self.sum = torch.zeros_like(optimizer.data)
        self.refused = 0

    def load(self, kept: Tensors, part: slice) -> int:
        """Begin with what was saved of all weights; how many later updates are lost."""
        optimizer, applied = self.optimizer, self.server.applied
        optimizer.data.copy_(kept[WEIGHTS][part])
        for name, mine in optimizer.state.items():
            if name != "step":
                mine.copy_(kept[f"{STATISTIC}{name}"][part])
        step = int(kept["step"][0])
        optimizer.state["step"].fill_(step)
        for name, moments in self.moments.items():
            row = kept[f"{MOMENTS}{name}"]
            if row[0] > 0 and part.start == 0:  # the first server adds them up
                moments.take(Moments.unpacked(row, tuple(moments.mean.shape)))
        # No version comes twice, or a gradient of lost weights could pass for one of these.
        self.rows, self.version = self._packed(), max(step, self.server.version + 1)
        self.server.open()
        self._publish()
        return max(applied - step, 0)

    def kept(self) -> Arrays:
        """What is saved."""
        state = self.optimizer.state
        return {
            WEIGHTS: self.optimizer.data.numpy(),
            **{
                f"{STATISTIC}{name}": value.numpy()
                for name, value in state.items()
                if name != "step"
            },
            "step": np.array([int(state["step"])]),
            **{f"{MOMENTS}{name}": row.numpy() for name, row in self.rows.items()},
        }

    def _packed(self) -> Tensors:
        return {name: moments.moments.packed() for name, moments in self.moments.items()}

    def _publish(self) -> None:
        self.newer = False
        applied = int(self.optimizer.state["step"])
        self.server.publish(self.version, self.optimizer.data, self.rows, applied=applied)

    def take(self) -> list[Request]:
        """New questions; their statistics are added to those of all."""
        found, added = self.server.take(), False
        for request in found:
            for name, row in self.server.moments(request).items():
                mine = self.moments[name]
                told = Moments.unpacked(row, tuple(mine.mean.shape))
                if told.count > 0 and told.finite():
                    mine.take(mine.moments.merged(told))
                    added = True
        if added:
            self.rows, self.newer = self._packed(), True
        return found

    def answer(self, request: Request, outcome: int) -> None:
        """Let the worker go on with the newest weights and statistics."""
        if self.newer:
            self._publish()
        staleness = self.version - request.version if request.pushes else 0
        steps = self.start_steps + self.server.steps()
        self.server.answer(request, outcome, staleness=staleness, steps=steps)

    def finite(self, request: Request) -> bool:
        """Whether the gradient can be used; if not, it is refused."""
        if torch.isfinite(self.server.gradient(request).sum()):
            return True
        self.refused += 1
        self.warn(f"a gradient of worker {request.worker} was not finite and was not used")
        self.answer(request, REFUSED)
        return False

    def step(self, requests: list[Request], scale: float = 1.0) -> None:
        """One update with the mean of some gradients, each weighed by its samples."""
        gradient = self._mean(requests)
        if scale != 1.0:
            gradient = gradient * scale
        self.optimizer.apply(gradient, requests[0].lr)
        self.version += 1
        self._publish()
        for request in requests:
            # A gradient is as old as the weights were before this update.
            staleness = self.version - 1 - request.version
            steps = self.start_steps + self.server.steps()
            self.server.answer(request, APPLIED, staleness=staleness, steps=steps)

    def _mean(self, requests: list[Request]) -> Tensor:
        if len(requests) == 1:
            return self.server.gradient(requests[0])
        self.sum.zero_()
        ordered = sorted(requests, key=lambda request: request.worker)
        for request in ordered:
            self.sum.add_(self.server.gradient(request), alpha=request.weight)
        return self.sum.div_(max(sum(request.weight for request in ordered), 1.0))


class Rule(Protocol):
    """When a shard steps."""

    late: int
    """Gradients that were too old."""

    @property
    def waits_for(self) -> int:
        """Gradients that an update takes now."""
        ...

    def hear(self, shard: Shard, request: Request) -> None:
        """A question: answered now, or kept."""
        ...

    def due(self) -> bool:
        """Whether :meth:`go_on` may do something although nobody has asked."""
        ...

    def go_on(self, shard: Shard) -> None:
        """Step, if it is time."""
        ...


class Rounds:
    """Steps with the mean of ``num_gradients`` gradients of the newest weights.

    Those that come later are of older weights and dropped. When fewer come for ``patience_secs``,
    it goes on with the workers that deliver, until the others come back.
    """

    def __init__(
        self,
        num_workers: int,
        *,
        num_gradients: int | None,
        patience_secs: float,
        warn: Callable[[str], None] = _LOG.warning,
    ) -> None:
        """``num_workers`` are there from the start; None of ``num_gradients``: those of all."""
        self.num_gradients, self.patience_secs, self.warn = num_gradients, patience_secs, warn
        self.delivering = set(range(num_workers))
        self.there: dict[int, Request] = {}
        """Gradients of the newest weights, by worker, in the order in which they came."""
        self.patience: Patience | None = None
        self.late = 0
        self._begun = False

    @property
    def waits_for(self) -> int:
        """As many as there are workers that deliver, at most."""
        most = len(self.delivering)
        return max(min(self.num_gradients or most, most), 1)

    def hear(self, shard: Shard, request: Request) -> None:
        """Keep a gradient of the newest weights; answer everything else."""
        if request.worker not in self.delivering:
            self.delivering.add(request.worker)
            _LOG.info("worker %d delivers; %d gradients an update", request.worker, self.waits_for)
        self.there.pop(request.worker, None)  # of a worker that has died since
        if not request.pushes:
            shard.answer(request, PULLED)
        elif request.version != shard.version:
            self._drop(shard, request)
        elif shard.finite(request):
            self.there[request.worker] = request

    def _drop(self, shard: Shard, request: Request) -> None:
        self.late += 1
        shard.answer(request, LATE)

    def due(self) -> bool:
        """Whether some have waited for others for long enough."""
        if not self.there:
            self.patience = None
            return False
        if self.patience is None:
            self.patience = Patience(self.patience_secs)
        return self.patience.over()

    def go_on(self, shard: Shard) -> None:
        """Step if there are enough; what came beyond those is late."""
        if self.due():
            self._lower()
        if len(self.there) < self.waits_for:
            return
        self._say_if_fewer()
        enough = list(self.there.values())[: self.waits_for]
        rest = list(self.there.values())[self.waits_for :]
        self.there.clear()
        self.patience = None
        shard.step(enough)
        for request in rest:
            self._drop(shard, request)

    def _say_if_fewer(self) -> None:
        """At the first update: workers of hosts that join may come later."""
        if not self._begun and self.num_gradients and self.waits_for < self.num_gradients:
            self.warn(
                f"updates take {self.waits_for}, not {self.num_gradients}, gradients until so many "
                "workers are there"
            )
        self._begun = True

    def _lower(self) -> None:
        """Go on with those that deliver."""
        missing, needed = sorted(self.delivering - set(self.there)), self.waits_for
        self.patience = None
        if len(self.there) >= needed:
            return
        self.delivering, self._begun = set(self.there), True
        names = ("workers " if len(missing) > 1 else "worker ") + ", ".join(map(str, missing))
        self.warn(
            f"no gradient of {names} for {self.patience_secs:g} s: updates take "
            f"{self.waits_for}, not {needed}, gradients until they come back"
        )


class Arrivals:
    """Steps with each gradient as it comes, older ones less far, and too old ones not at all."""

    waits_for = 1

    def __init__(self, *, max_staleness: int | None, damping: float) -> None:
        self.max_staleness, self.damping = max_staleness, damping
        self.late = 0

    def hear(self, shard: Shard, request: Request) -> None:
        """Step, or drop it."""
        if not request.pushes:
            shard.answer(request, PULLED)
            return
        staleness = shard.version - request.version
        if self.max_staleness is not None and staleness > self.max_staleness:
            self.late += 1
            shard.answer(request, LATE)
        elif shard.finite(request):
            scale = (1.0 + staleness) ** -self.damping if staleness and self.damping else 1.0
            shard.step([request], scale)

    def due(self) -> bool:
        """Nobody waits for anybody."""
        return False

    def go_on(self, shard: Shard) -> None:
        """All was done as it came."""


class ParameterServer(BaseRole):
    """Number ``server`` of those who keep a part of the weights each."""

    def __init__(
        self,
        shard: Shard,
        rule: Rule,
        *,
        part: slice,
        kept: ParamSource,
        kept_like: Mapping[str, ArraySpec],
        saves: CallServer,
        heartbeat: Heartbeat,
        warn: Callable[[str], None],
    ) -> None:
        """``kept``: what was saved last of all weights; ``saves``: who wants to save this part."""
        self.shard, self.rule, self.part = shard, rule, part
        self.kept, self.kept_like, self.saves = kept, kept_like, saves
        self.heartbeat, self.warn = heartbeat, warn
        self.begun = False

    def ready(self) -> bool:
        """Whether somebody has asked, or waited for long enough."""
        if not self.begun:
            return self._begin()
        waits = self.shard.server.waiting() or self.rule.due()
        return waits or self.saves.asked_about() is not None

    def _begin(self) -> bool:
        """Take this part of what was saved last, once there is something."""
        into = {name: torch.from_numpy(array) for name, array in zeros(self.kept_like).items()}
        if self.kept.get(-1, into) is None:
            return False
        lost = self.shard.load(into, self.part)
        if lost:
            self.warn(
                f"goes on from what was saved last: its {lost} updates since then are lost for "
                f"weights {self.part.start:,} to {self.part.stop - 1:,}"
            )
        self.begun = True
        return True

    def wait(self, timeout_secs: float) -> None:
        """Sleep until somebody may have asked."""
        with self.heartbeat.waiting():
            self.shard.server.wait(timeout_secs)

    def step(self) -> None:
        """Hear all that was asked, and step if it is time."""
        for request in self.shard.take():
            self.rule.hear(self.shard, request)
        self.rule.go_on(self.shard)
        self.answer()

    def midway(self) -> bool:
        """Whether a worker is in the middle of an update."""
        return self.begun and self.shard.server.in_update()

    def answer(self) -> None:
        """Give who saves what there is of this part."""
        if self.saves.asked_about() is not None and (self.begun or self._begin()):
            self.saves.answer(**self.shard.kept())

    def metrics(self) -> dict[str, float]:
        """What :data:`METRICS` names."""
        numbers = (self.shard.version, self.rule.waits_for, self.rule.late, self.shard.refused)
        return dict(zip(METRICS, map(float, numbers), strict=True))
