"""Inference: one network chooses the actions of many actors, for all that wait at once.

Whatever waits when the network is free is one batch; there is no timer to set. What an actor's
environments did is written down here, on the way to the learner or to replay, and so is what their
policy remembers. Each lane draws from a stream of its own, so its choices do not depend on who else
is in the batch.

Shapes: B environments of one lane, N of all that are asked about at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import UserError
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import BaseRole
from rookery.core.spec import Array
from rookery.core.tensors import Tensors
from rookery.nets.heads import Noise
from rookery.roles.lane import Look, group
from rookery.roles.policy_replica import PolicyReplica
from rookery.runs.checkpoint_files import State
from rookery.transport.requests import RequestServer, Seat

_WEIGHTS = "weights/"
WITHIN_MS = (1, 2, 5, 10, 20, 50, 100)
METRICS = (
    "inference/requests_per_sec",
    "inference/batch_envs",
    "inference/latency_ms_p50",
    "inference/latency_ms_p99",
    *(f"inference/within_{most}_ms" for most in WITHIN_MS),
)
"""Of the last requests: how many a second, environments in one batch, time from request to answer,
and the share that was answered within so many milliseconds."""
RECENT = 2048


class ServedLane(Protocol):
    """Environments of an actor, and where goes what they do: :class:`ExploringLane` puts steps,
    :class:`RolloutLane` rollouts."""

    rng: np.random.Generator

    def has_room(self) -> bool:
        """Whether what is done next can be written down."""
        ...

    def looks(self) -> bool:
        """Whether the newest weights are wanted."""
        ...

    def midway(self) -> bool:
        """Whether something is begun that is put only later."""
        ...

    def take_over(self) -> None:
        """Begin with what was left here, once there are weights."""
        ...

    def begin_anew(self, rng: np.random.Generator) -> None:
        """Another actor takes the place of the one before."""
        ...

    def lose(self, lost: Array) -> None:
        """The episodes of rows ``lost`` do not go on."""
        ...

    def look(self) -> Look:
        """What to ask about."""
        ...

    def ask(self, policy: Any, look: Look, noise: Noise) -> tuple[tuple[Tensor, ...], Tensors]:
        """Leaves ``[N, ...]`` that :meth:`act` takes its rows of, and the state afterwards."""
        ...

    def act(self, out: tuple[Tensor, ...], state: Tensors) -> None:
        """Choose; the environments begin to step."""
        ...

    def receive(self) -> None:
        """What they did."""
        ...

    def save_state(self) -> State | None:
        """Where the episodes are."""
        ...

    def load_state(self, saved: State) -> None:
        """Go on from there."""
        ...


@dataclass(slots=True)
class Served:
    """A lane, and the seat of the actor that steps it."""

    lane: ServedLane
    seat: Seat
    stepping: bool = False
    """Whether the actor has its actions, or nothing was seen yet."""
    begun: bool = False
    """Whether something was seen of this actor."""
    turn: int = 0
    """The batch that it was in last."""
    restored: bool = False
    """Whether the lane goes on where a checkpoint had it."""


class Inference(BaseRole):
    """The lanes of all actors of one server, and one copy of the network."""

    def __init__(
        self,
        served: Sequence[Served],
        weights: PolicyReplica,
        requests: RequestServer,
        stream: Callable[[int, int, int], np.random.Generator],
        *,
        max_batch_envs: int | None = None,
        keeps_weights: bool = False,
        life: int = 0,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """``stream(actor, part, greeting)``: what chance is drawn from for whoever greeted so;
        ``keeps_weights``: whether they may be older than the published ones and are saved."""
        self.served, self.weights, self.requests, self.stream = served, weights, requests, stream
        self.max_batch_envs, self.keeps_weights, self.life = max_batch_envs, keeps_weights, life
        self.heartbeat = heartbeat or Heartbeat()
        self._turn = 0
        self._resumes = False
        self._latency_ns: deque[int] = deque(maxlen=RECENT)
        self._answered_ns: deque[int] = deque(maxlen=RECENT)
        self._batches: deque[int] = deque(maxlen=RECENT)

    # ---- the loop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Let actors greet."""
        self.requests.open(self.life)

    def ready(self) -> bool:
        """Whether somebody greets, asks, or can be answered."""
        newcomers = bool(self.requests.newcomers())
        return newcomers or any(map(_arrived, self.served)) or bool(self._choosing())

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.heartbeat.waiting():
            self.requests.wait(timeout_secs)

    def step(self) -> None:
        """Welcome, choose for all that wait, and write down what was done meanwhile."""
        for actor in self.requests.newcomers():
            self._welcome(actor)
        self._resumes = any(each.restored for each in self.served)
        with torch.inference_mode():
            if served := self._choosing():
                self._choose(served)
            for each in self.served:
                if _arrived(each):
                    self._receive(each)

    def midway(self) -> bool:
        """Whether a lane has begun what it puts only when its actor has stepped; or lanes go on
        where a checkpoint had them, and have not had the turn that comes before anybody learns."""
        return self._resumes or any(each.lane.midway() for each in self.served)

    def _welcome(self, actor: int) -> None:
        greeting = self.requests.greeting(actor)
        for each in self.served:
            seat = each.seat
            if seat.actor != actor:
                continue
            if not each.restored:
                each.lane.begin_anew(self.stream(actor, seat.part, greeting))
            each.stepping, each.begun = True, False
        self.requests.welcome(actor, greeting)

    def _receive(self, each: Served) -> None:
        each.stepping = False
        if each.begun:
            each.lane.receive()
            return
        each.begun = True
        if each.restored:
            each.restored = False
            each.lane.lose(each.seat.arrays["reset"].copy())

    # ---- a batch ---------------------------------------------------------------------------------

    def _choosing(self) -> list[Served]:
        """Whom to choose for now: all that wait, or in turn as many as make one batch."""
        waiting = [
            each
            for each in self.served
            if each.begun and not each.stepping and each.lane.has_room()
        ]
        if not waiting:
            return []
        if any(each.lane.looks() for each in waiting) and not self.weights.refresh():
            return []
        if self.max_batch_envs is None:
            return waiting
        waiting.sort(key=lambda each: each.turn)
        return waiting[: max(self.max_batch_envs // waiting[0].seat.num_envs, 1)]

    def _choose(self, served: Sequence[Served]) -> None:
        """One batch: ask for all, tell each its rows."""
        self.requests.version, self._turn = self.weights.version, self._turn + 1
        for each in served:
            each.lane.take_over()
        asked_ns = [each.seat.since_ns for each in served]  # who has its answer may ask again
        looks = [each.lane.look() for each in served]
        noise = _JoinedNoise([(each.lane.rng, each.seat.num_envs) for each in served])
        out, state = served[0].lane.ask(self.weights.policy, _joined(looks), noise)
        row = 0
        for each in served:
            rows = slice(row, row + each.seat.num_envs)
            mine = {name: leaf[rows] for name, leaf in state.items()}
            each.stepping, each.turn = True, self._turn
            each.lane.act(tuple(leaf[rows] for leaf in out), mine)
            row = rows.stop
        moment = time.monotonic_ns()
        self._batches.append(row)
        self._latency_ns.extend(moment - asked for asked in asked_ns)
        self._answered_ns.extend(moment for _ in asked_ns)

    def metrics(self) -> dict[str, float]:
        """How many requests there are, how large batches, and how long an answer takes."""
        if not self._latency_ns:
            return dict.fromkeys(METRICS, 0.0)
        latency_ms = np.array(self._latency_ns) / 1e6
        lasted = max(time.monotonic_ns() - self._answered_ns[0], 1) / 1e9
        within = [float((latency_ms <= most).mean()) for most in WITHIN_MS]
        told = (
            len(latency_ms) / lasted,
            float(np.mean(self._batches)),
            float(np.median(latency_ms)),
            float(np.percentile(latency_ms, 99)),
            *within,
        )
        return dict(zip(METRICS, told, strict=True))

    # ---- to go on later --------------------------------------------------------------------------

    def save_episodes(self) -> State | None:
        """Where all lanes are, or None if some have not begun or are between two steps."""
        arrays: dict[str, Any] = {}
        data: dict[str, Any] = {"version": self.weights.version, "turn": self._turn, "lanes": []}
        for index, each in enumerate(self.served):
            whole = each.begun and not each.stepping and not each.lane.midway()
            saved = each.lane.save_state() if whole else None
            if saved is None:
                return None
            data["lanes"].append([each.seat.actor, each.seat.part, each.seat.num_envs])
            arrays |= {f"{index}/{name}": array for name, array in saved.arrays.items()}
            data[str(index)] = saved.data | {"turn": each.turn}
        if self.keeps_weights:
            arrays |= {f"{_WEIGHTS}{name}": leaf for name, leaf in self.weights.save().items()}
        return State(arrays, data)

    def load_episodes(self, saved: State) -> None:
        """Go on from :meth:`save_episodes`."""
        lanes = [[each.seat.actor, each.seat.part, each.seat.num_envs] for each in self.served]
        if saved.data["lanes"] != lanes:
            raise UserError("it was made with another number of actors or environments")
        for index, each in enumerate(self.served):
            arrays = group(saved, f"{index}/")
            each.lane.load_state(State(dict(arrays), saved.data[str(index)]))
            each.restored, each.turn = True, saved.data[str(index)]["turn"]
        self._resumes = True
        self._turn = saved.data["turn"]
        if self.keeps_weights:
            self.weights.load(group(saved, _WEIGHTS), saved.data["version"])


def _arrived(each: Served) -> bool:
    return each.stepping and each.seat.arrived()


def _joined(looks: Sequence[Look]) -> Look:
    """``[N, ...]`` of all."""
    if len(looks) == 1:
        return looks[0]

    def join(leaves: Sequence[Tensors]) -> Tensors:
        return {name: torch.cat([each[name] for each in leaves]) for name in leaves[0]}

    return Look(
        join([look.obs for look in looks]),
        join([look.state for look in looks]),
        torch.cat([look.reset for look in looks]),
    )


class _JoinedNoise:
    """Noise ``[N, ...]`` of which each generator draws its rows, as if it were alone."""

    def __init__(self, parts: Sequence[tuple[np.random.Generator, int]]) -> None:
        self.parts = parts

    def standard_exponential(self, size: Any, dtype: Any) -> Any:
        """Exponential noise."""
        return self._drawn("standard_exponential", size, dtype)

    def standard_normal(self, size: Any, dtype: Any) -> Any:
        """Normal noise."""
        return self._drawn("standard_normal", size, dtype)

    def random(self, size: Any, dtype: Any) -> Any:
        """Uniform noise in [0, 1)."""
        return self._drawn("random", size, dtype)

    def _drawn(self, kind: str, size: Any, dtype: Any) -> Any:
        num, *rest = size
        if num != sum(rows for _, rows in self.parts):
            raise RuntimeError(f"noise for {num} rows, of another batch")
        drawn = [getattr(rng, kind)((rows, *rest), dtype) for rng, rows in self.parts]
        return drawn[0] if len(drawn) == 1 else np.concatenate(drawn)
