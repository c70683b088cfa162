"""Requests for actions: what an actor's environments did goes out, what they do next comes back.

An actor has its environments in parts, and each part has at most one request under way: the actor
counts what it has *asked*, the server what it has *answered*, and the arrays of a part belong to
whoever has the turn. Every count has one writer.

An actor that begins, in whichever life, greets the server and asks only once it is welcome; so
nobody reads a part while another actor writes it. A server that takes another's place raises the
*epoch*: all actors greet it anew, and their episodes begin anew.

::

    # an actor                                      # the server
    if client.must_greet():                         for actor in server.newcomers():
        client.greet()                                  ...
    if client.welcome():                                server.welcome(actor)
        client.ask(part, result)                    for seat in server.seats:
    if client.answered(part):                           if seat.arrived():
        actions = client.take(part)                         ... seat.finish_step(), seat.begin_step

Shapes: A actors, P parts of each, B environments of one part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rookery.core.ports import End, Kind
from rookery.core.signature import Signature
from rookery.core.spec import Array, Arrays, ArraySpec, LeafSpec, LeafSpecs, under
from rookery.envs.transition import StepResult

_INT, _REAL, _FLAG = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.bool_)
_LINE = 8
"""Counts of different writers lie on cache lines of their own."""
COUNT, SAW_LAST, SAW_WHOLE, SINCE = range(4)
"""Of a request: its number; whether final_obs and whole_ended are there; when it was asked, in
nanoseconds of this machine's clock."""
VERSION = 1
"""Of an answer, behind its number: the weights that chose."""
GREETING, FOR_EPOCH = 0, 1
_RESULT, _FINAL = "result/", "final_obs/"


class _Memory:
    """The arrays of the port."""

    def __init__(self, arrays: Arrays) -> None:
        self.epoch, self.greeted, self.welcomed = (
            arrays["epoch"],
            arrays["greeted"],
            arrays["welcomed"],
        )
        self.asked, self.answered = arrays["asked"], arrays["answered"]
        self.action = arrays["action"]
        self.results = under(_RESULT, arrays)
        self.num_actors, self.num_parts = self.asked.shape[:2]

    def waits(self, actor: int, part: int) -> bool:
        """Whether a request of that part has no answer yet."""
        return bool(self.asked[actor, part, COUNT] != self.answered[actor, part, COUNT])


class RequestClient:
    """One actor's end."""

    def __init__(self, end: End) -> None:
        self.end, self.memory, self.actor = end, _Memory(end.arrays), end.replica
        self.epoch = 0
        self._under_way = [False] * self.memory.num_parts
        self._parts = [
            {name: array[self.actor, part] for name, array in self.memory.results.items()}
            for part in range(self.memory.num_parts)
        ]

    def must_greet(self) -> bool:
        """Whether there is a server that does not know this actor."""
        return bool(self.epoch != self.memory.epoch[0])

    def greet(self) -> None:
        """Say that this actor is there; what it had asked is forgotten."""
        memory, actor = self.memory, self.actor
        self.epoch = int(memory.epoch[0])
        self._under_way = [False] * memory.num_parts
        memory.greeted[actor, FOR_EPOCH] = self.epoch
        memory.greeted[actor, GREETING] += 1
        self.end.notify_peers()

    def welcome(self) -> bool:
        """Whether it may ask."""
        memory, actor = self.memory, self.actor
        known = memory.welcomed[actor, 0] == memory.greeted[actor, GREETING]
        return bool(known) and 0 < self.epoch == memory.epoch[0]

    def ask(self, part: int, result: StepResult) -> None:
        """Tell what a step of ``part`` did, and ask what to do next."""
        into = self._parts[part]
        for name, leaf in result.obs.items():
            into[f"obs/{name}"][...] = leaf
        for name, leaf in (result.final_obs or {}).items():
            into[f"{_FINAL}{name}"][...] = leaf
        for name, leaf in result.info.items():
            into[f"info/{name}"][...] = leaf
        for name in ("reward", "terminated", "truncated", "valid", "reset"):
            into[name][...] = getattr(result, name)
        if result.whole_ended is not None:
            into["whole_ended"][...] = result.whole_ended
        row = self.memory.asked[self.actor, part]
        row[SAW_LAST], row[SAW_WHOLE] = result.final_obs is not None, result.whole_ended is not None
        row[SINCE] = time.monotonic_ns()
        row[COUNT] += 1  # last: from here on the arrays are the server's
        self._under_way[part] = True
        self.end.notify_peers()

    def answered(self, part: int) -> bool:
        """Whether the request of ``part`` has an answer."""
        return self._under_way[part] and not self.memory.waits(self.actor, part)

    def take(self, part: int) -> Array:
        """``[B, ...]`` the actions of ``part``; call when :meth:`answered`."""
        self._under_way[part] = False
        actions: Array = self.memory.action[self.actor, part]
        return actions

    def wait(self, timeout_secs: float) -> None:
        """Sleep until there may be an answer."""
        self.end.own.wait(timeout_secs)


class Seat:
    """One part of an actor as the server sees it: environments that step elsewhere
    (a :class:`~rookery.envs.transition.BackgroundVectorEnv`)."""

    def __init__(
        self,
        server: RequestServer,
        actor: int,
        part: int,
        obs_leaves: LeafSpecs,
        action_leaf: LeafSpec,
    ) -> None:
        self.server, self.actor, self.part = server, actor, part
        self.obs_leaves, self.action_leaf = obs_leaves, action_leaf
        memory = server.memory
        self.asked, self.counts = memory.asked[actor, part], memory.answered[actor, part]
        self.action = memory.action[actor, part]
        self.arrays = {name: array[actor, part] for name, array in memory.results.items()}
        self.num_envs = len(self.action)
        self.lost_episodes = np.zeros(self.num_envs, np.bool_)
        self._obs, self._final = under("obs/", self.arrays), under(_FINAL, self.arrays)
        self._info = under("info/", self.arrays)

    def arrived(self) -> bool:
        """Whether the actor waits for an answer."""
        return bool(self.asked[COUNT] != self.counts[COUNT])

    @property
    def since_ns(self) -> int:
        """When it asked."""
        return int(self.asked[SINCE])

    def reset(self) -> Arrays:
        """What the actor's first request shows."""
        return self._obs

    def begin_step(self, actions: Array) -> None:
        """Answer: the actor may step."""
        self.action[...] = actions
        self.counts[VERSION] = self.server.version
        self.counts[COUNT] = self.asked[COUNT]  # last: from here on the arrays are the actor's
        self.server.wake(self.actor)

    def finish_step(self) -> StepResult:
        """What the actor's step did, to be read until the next answer; call when arrived."""
        arrays, header = self.arrays, self.asked
        return StepResult(
            obs=self._obs,
            reward=arrays["reward"],
            terminated=arrays["terminated"],
            truncated=arrays["truncated"],
            valid=arrays["valid"],
            reset=arrays["reset"],
            final_obs=self._final if header[SAW_LAST] else None,
            info=self._info,
            whole_ended=arrays["whole_ended"] if header[SAW_WHOLE] else None,
        )

    def step(self, actions: Array) -> StepResult:
        """Both halves; never called, because the actor steps meanwhile."""
        raise RuntimeError("environments of another role take a step in two halves")

    def state_dict(self) -> tuple[Arrays, dict[str, Any]]:
        """The actor saves them."""
        return {}, {}

    def load_state_dict(self, arrays: Arrays, data: dict[str, Any]) -> Arrays:
        """The actor restores them."""
        return self._obs

    def close(self) -> None:
        """The actor closes them."""


class RequestServer:
    """The end of the one who chooses the actions."""

    def __init__(self, end: End) -> None:
        self.end, self.memory = end, _Memory(end.arrays)
        self.version = -1
        """Of the weights that choose now."""

    def open(self, life: int) -> None:
        """Begin: all actors greet whoever serves now."""
        self.memory.welcomed[:, 0] = 0
        self.memory.epoch[0] = life + 1
        self.end.notify_peers()

    def seat(self, actor: int, part: int, signature: Signature) -> Seat:
        """One part of an actor."""
        return Seat(self, actor, part, signature.obs, signature.action)

    def newcomers(self) -> list[int]:
        """Actors that have begun and are not welcome yet."""
        greeted = self.memory.greeted
        new = (greeted[:, GREETING] != self.memory.welcomed[:, 0]) & (
            greeted[:, FOR_EPOCH] == self.memory.epoch[0]
        )
        return [int(actor) for actor in np.flatnonzero(new)] if new.any() else []

    def greeting(self, actor: int) -> int:
        """How often that place was taken so far."""
        return int(self.memory.greeted[actor, GREETING])

    def welcome(self, actor: int, greeting: int) -> None:
        """Let the actor that greeted so ask; nothing of those before it waits any more."""
        memory = self.memory
        memory.answered[actor, :, COUNT] = memory.asked[actor, :, COUNT]
        memory.welcomed[actor, 0] = greeting
        self.wake(actor)

    def wake(self, actor: int) -> None:
        """Have an actor look again; those in this thread look anyway."""
        if self.end.peers:
            self.end.peers[actor].notify()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until somebody may have asked."""
        self.end.own.wait(timeout_secs)


@dataclass(frozen=True)
class RequestsPort:
    """Requests for actions, of actors that have no network, and their answers."""

    name: ClassVar[str] = "actions"
    kind: ClassVar[Kind] = "call"
    about: ClassVar[str] = "what environments did, and the actions that they take next"

    obs: Mapping[str, ArraySpec]
    action: ArraySpec
    info_keys: tuple[str, ...]
    num_actors: int
    num_parts: int
    num_envs: int
    """Of each part."""

    def traffic(self) -> tuple[int, str]:
        """One environment's step and its action."""
        seen = sum(
            spec.num_bytes for name, spec in self.result().items() if not name.startswith(_FINAL)
        )
        return seen + self.action.num_bytes, "step"

    def result(self) -> dict[str, ArraySpec]:
        """What one environment's step did."""
        flags = ("terminated", "truncated", "valid", "reset", "whole_ended")
        return {
            **{f"obs/{name}": spec for name, spec in self.obs.items()},
            **{f"{_FINAL}{name}": spec for name, spec in self.obs.items()},
            **{f"info/{name}": ArraySpec((), _REAL) for name in self.info_keys},
            "reward": ArraySpec((), _REAL),
            **{name: ArraySpec((), _FLAG) for name in flags},
        }

    def part(self) -> dict[str, ArraySpec]:
        """The results of one part's environments."""
        return {name: spec.with_axes(self.num_envs) for name, spec in self.result().items()}

    def layout(self) -> dict[str, ArraySpec]:
        """Counts, actions and results of all."""
        actors, parts = self.num_actors, self.num_parts
        line = ArraySpec((_LINE,), _INT)
        return {
            "epoch": line,
            "greeted": line.with_axes(actors),
            "welcomed": line.with_axes(actors),
            "asked": line.with_axes(actors, parts),
            "answered": line.with_axes(actors, parts),
            "action": self.action.with_axes(actors, parts, self.num_envs),
            **{
                f"{_RESULT}{name}": spec.with_axes(actors, parts)
                for name, spec in self.part().items()
            },
        }

    def client(self, end: End) -> RequestClient:
        """An actor's end."""
        return RequestClient(end)

    def server(self, end: End) -> RequestServer:
        """The end of the one who chooses."""
        return RequestServer(end)

    def for_one(self, client: int) -> RequestsPort:
        """With one actor."""
        return replace(self, num_actors=1)

    def client_relay(self, arrays: Arrays) -> RequestSender:
        """Beside an actor."""
        return RequestSender(self, _Memory(arrays))

    def server_relay(self, end: End) -> RequestReceiver:
        """In the place of an actor."""
        return RequestReceiver(self, end)


_ONE = ArraySpec((1,), _INT)


def _asking(port: RequestsPort) -> dict[str, ArraySpec]:
    """What goes to the server: a greeting with its epoch, or a part with its header and results."""
    header = {"greeting": ArraySpec((2,), _INT), "part": _ONE, "header": ArraySpec((_LINE,), _INT)}
    return {**header, **port.part()}


def _answering(port: RequestsPort) -> dict[str, ArraySpec]:
    """What comes back: an epoch, a greeting that is welcome, or a part with version and actions."""
    action = port.action.with_axes(port.num_envs)
    return {"epoch": _ONE, "welcome": _ONE, "part": _ONE, "version": _ONE, "action": action}


class RequestSender:
    """Carries an actor's greetings and requests out, and what is said to them in."""

    def __init__(self, port: RequestsPort, memory: _Memory) -> None:
        self.memory = memory
        self.greeted = int(memory.greeted[0, GREETING])
        self.sent = memory.asked[0, :, COUNT].copy()
        self.sends, self.receives = _asking(port), _answering(port)

    def next(self) -> Arrays | None:
        """A greeting, or the request of a part; what is not there is left out."""
        memory = self.memory
        if memory.greeted[0, GREETING] != self.greeted:
            self.greeted = int(memory.greeted[0, GREETING])
            self.sent = memory.asked[0, :, COUNT].copy()  # of the time before; now it asks nothing
            return {"greeting": np.array([self.greeted, memory.greeted[0, FOR_EPOCH]])}
        for part in np.flatnonzero(memory.asked[0, :, COUNT] != self.sent):
            self.sent[part] = memory.asked[0, part, COUNT]
            return {"part": np.array([part]), **self._request(int(part))}
        return None

    def _request(self, part: int) -> Arrays:
        header = self.memory.asked[0, part].copy()
        absent = () if header[SAW_LAST] else (_FINAL,)
        results = {
            name: array[0, part]
            for name, array in self.memory.results.items()
            if not name.startswith(absent)
        }
        return {"header": header, **results}

    def accept(self, frame: Arrays) -> None:
        """What the server says; an answer to who was there before is nobody's."""
        memory = self.memory
        if "epoch" in frame:
            memory.epoch[0] = frame["epoch"][0]
        elif "welcome" in frame:
            memory.answered[0, :, COUNT] = memory.asked[0, :, COUNT]
            memory.welcomed[0, 0] = frame["welcome"][0]
        elif memory.welcomed[0, 0] == memory.greeted[0, GREETING]:
            part = int(frame["part"][0])
            memory.action[0, part] = frame["action"]
            memory.answered[0, part, VERSION] = frame["version"][0]
            memory.answered[0, part, COUNT] = memory.asked[0, part, COUNT]


class RequestReceiver:
    """Greets and asks in the place of an actor of another host, and carries back what is said."""

    def __init__(self, port: RequestsPort, end: End) -> None:
        self.end, self.memory, self.actor = end, _Memory(end.arrays), end.replica
        self.epoch, self.greeting, self.theirs = 0, -1, 0
        self.welcomed = False
        self.under_way = [False] * port.num_parts
        self.sends, self.receives = _answering(port), _asking(port)

    def next(self) -> Arrays | None:
        """An epoch, a greeting that is welcome, or an answer."""
        return next(self._news(), None)

    def _news(self) -> Iterator[Arrays]:
        memory, actor = self.memory, self.actor
        if memory.epoch[0] != self.epoch:
            self.epoch, self.welcomed = int(memory.epoch[0]), False
            self.greeting, self.under_way = -1, [False] * len(self.under_way)
            yield {"epoch": np.array([self.epoch])}
        if not self.welcomed and memory.welcomed[actor, 0] == self.greeting:
            self.welcomed = True
            yield {"welcome": np.array([self.theirs])}
        for part, waits in enumerate(self.under_way):
            if waits and not memory.waits(actor, part):
                self.under_way[part] = False
                yield {
                    "part": np.array([part]),
                    "version": memory.answered[actor, part, VERSION : VERSION + 1].copy(),
                    "action": memory.action[actor, part],
                }

    def accept(self, frame: Arrays) -> None:
        """A greeting or a request."""
        if "greeting" in frame:
            self._greet(*map(int, frame["greeting"]))
        elif self.welcomed:
            self._ask(int(frame["part"][0]), frame)

    def _greet(self, theirs: int, epoch: int) -> None:
        """Of whoever greeted another server, another greeting will come."""
        if epoch != self.epoch:
            return
        row = self.memory.greeted[self.actor]
        self.theirs, self.welcomed = theirs, False
        self.under_way = [False] * len(self.under_way)
        row[FOR_EPOCH] = epoch
        self.greeting = int(row[GREETING]) + 1
        row[GREETING] = self.greeting
        self.end.notify_peers()

    def _ask(self, part: int, frame: Arrays) -> None:
        if not 0 <= part < len(self.under_way) or self.under_way[part]:
            raise RuntimeError(f"a request of part {part}, which has none to make")
        for name, array in self.memory.results.items():
            if name in frame:
                array[self.actor, part] = frame[name]
        row = self.memory.asked[self.actor, part]
        row[SAW_LAST], row[SAW_WHOLE] = frame["header"][SAW_LAST], frame["header"][SAW_WHOLE]
        row[SINCE] = time.monotonic_ns()  # the other machine's clock is another
        row[COUNT] += 1
        self.under_way[part] = True
        self.end.notify_peers()
