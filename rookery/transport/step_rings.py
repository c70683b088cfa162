"""Steps of many actors on their way into replay, through bounded rings without a lock.

Every actor has a ring of S slots, each memory for one step of its environments, which it fills in
place. The actor counts what it has *put*, replay what it has *taken* and how many it has *granted*:
an actor puts no further than that. Every count has one writer. What a killed actor had half written
was never counted, and its replacement writes over it.

Shapes: A actors, S slots of each, B environments of one actor, W numbers that an episode tells.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rookery.core.ports import End, Kind
from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import Array, Arrays, ArraySpec, under

_INT, _FLOAT, _BOOL = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.bool_)
_LINE = 8
"""Counts of different writers lie on cache lines of their own."""
_SLOT = "slot/"
TAKEN, GRANTED = 0, 1
NUM_ENDED, SAW_LAST, VALUED_LAST = 0, 1, 2
"""Of a slot's header: episodes that ended; whether final_obs and final_extra are there."""


def slot_specs(spec: StepSpec, num_envs: int, episode_width: int) -> dict[str, ArraySpec]:
    """The arrays of one slot: a step of each of an actor's environments, and what ended."""
    leaves = {f"obs/{name}": leaf for name, leaf in spec.obs.items()}
    leaves |= {f"final_obs/{name}": leaf for name, leaf in spec.obs.items()}
    leaves |= {f"state/{name}": leaf for name, leaf in spec.state.items()}
    leaves |= {f"extra/{name}": leaf for name, leaf in spec.extra.items()}
    leaves |= {f"final_extra/{name}": leaf for name, leaf in spec.extra.items()}
    flag = ArraySpec((), _BOOL)
    leaves |= {
        "action": spec.action,
        "reward": ArraySpec((), np.dtype(np.float32), finite=True),
        "terminated": flag,
        "truncated": flag,
        "valid": flag,
        "anew": flag,
        "episodes": ArraySpec((episode_width,), _FLOAT),
    }
    slots = {name: leaf.with_axes(num_envs) for name, leaf in leaves.items()}
    return {"header": ArraySpec((_LINE,), _INT), **slots}


class Slot:
    """One step of an actor's environments."""

    def __init__(self, arrays: Arrays, streams: Array) -> None:
        self.arrays = arrays
        self.header, self.anew = arrays["header"], arrays["anew"]
        self.final_obs, self.final_extra = (
            under("final_obs/", arrays),
            under("final_extra/", arrays),
        )
        self.steps = Steps(
            stream=streams,
            obs=under("obs/", arrays),
            action=arrays["action"],
            reward=arrays["reward"],
            terminated=arrays["terminated"],
            truncated=arrays["truncated"],
            final_obs=self.final_obs,
            valid=arrays["valid"],
            state=under("state/", arrays),
            extra=under("extra/", arrays),
            final_extra=self.final_extra,
        )

    def check(self) -> None:
        """Refuse a header that does not fit the step."""
        num, saw_last, valued_last = self.header[: VALUED_LAST + 1].tolist()
        if not 0 <= num <= len(self.anew) or {saw_last, valued_last} - {0, 1}:
            raise ValueError(f"a header {num}, {saw_last}, {valued_last}")
        arrays = self.arrays
        ended = (arrays["terminated"] | arrays["truncated"]) & arrays["valid"]
        if not saw_last and np.count_nonzero(ended):
            raise ValueError("an episode ended, but its last observation is missing")

    def read(self) -> tuple[Steps, Array]:
        """The step, and ``[E, W]`` what ended episodes told."""
        header, steps = self.header, self.steps
        steps.final_obs = self.final_obs if header[SAW_LAST] else None
        steps.final_extra = self.final_extra if header[VALUED_LAST] else None
        return steps, self.arrays["episodes"][: header[NUM_ENDED]]


class StepRings:
    """The rings of all actors."""

    def __init__(self, arrays: Arrays) -> None:
        self.put, self.counts = arrays["put"][:, 0], arrays["counts"]
        self.status = arrays["status"]
        """``[0]``: steps of the run, as replay counts them."""
        slots = under(_SLOT, arrays)
        self.num_actors, self.num_slots, num_envs = map(int, slots["reward"].shape)
        self.slots = [
            [
                Slot(
                    {name: array[actor, slot] for name, array in slots.items()},
                    np.arange(actor * num_envs, (actor + 1) * num_envs),
                )
                for slot in range(self.num_slots)
            ]
            for actor in range(self.num_actors)
        ]

    def slot(self, actor: int, number: int) -> Slot:
        """Memory of an actor's step ``number``."""
        return self.slots[actor][number % self.num_slots]

    def waiting(self, actor: int) -> int:
        """Slots of an actor that are put and not taken."""
        return int(self.put[actor] - self.counts[actor, TAKEN])


class RingSink:
    """An actor's end (a :class:`~rookery.core.ports.StepSink`)."""

    def __init__(self, rings: StepRings, end: End, steps_each: int) -> None:
        """``steps_each``: how many puts follow a :meth:`can_put`."""
        self.rings, self.actor, self.end = rings, end.replica, end
        self.steps_each = steps_each

    def can_put(self) -> bool:
        """Whether replay takes so many more."""
        rings = self.rings
        return bool(rings.counts[self.actor, GRANTED] >= rings.put[self.actor] + self.steps_each)

    def reserve(self) -> Steps:
        """The next slot, to be filled in place."""
        rings, actor = self.rings, self.actor
        if rings.put[actor] >= rings.counts[actor, GRANTED]:
            raise RuntimeError("reserve() without can_put()")
        self.slot = rings.slot(actor, int(rings.put[actor]))
        steps = self.slot.steps
        steps.final_obs, steps.final_extra = self.slot.final_obs, self.slot.final_extra
        return steps

    def put(
        self,
        steps: Steps,
        episodes: Array,
        *,
        ended: bool,
        valued: bool,
        anew: Array | None = None,
    ) -> None:
        """Hand the reserved slot over."""
        slot = self.slot
        if steps is not slot.steps:
            raise RuntimeError("put() of steps that were not reserved")
        slot.arrays["episodes"][: len(episodes)] = episodes
        slot.header[NUM_ENDED] = len(episodes)
        slot.header[SAW_LAST], slot.header[VALUED_LAST] = ended, valued
        slot.anew[...] = False if anew is None else anew
        self.rings.put[self.actor] += 1  # last: from here on it is replay's
        self.end.notify_peers()

    def total_steps(self) -> int:
        """What replay has counted."""
        return int(self.rings.status[0])

    def wait(self, timeout_secs: float) -> None:
        """Sleep until replay has taken."""
        self.end.own.wait(timeout_secs)


class RingSource:
    """Replay's end: steps of all actors, each in its turn."""

    def __init__(self, rings: StepRings, end: End, steps_each: int) -> None:
        self.rings, self.end, self.steps_each = rings, end, steps_each
        self._next = 0

    def head(self) -> int | None:
        """The actor whose step comes next; None if nothing waits."""
        for turn in range(self.rings.num_actors):
            actor = (self._next + turn) % self.rings.num_actors
            if self.rings.waiting(actor) > 0:
                return actor
        return None

    def take(self, actor: int) -> Slot:
        """The oldest step of ``actor``; call :meth:`done` when it was read."""
        return self.rings.slot(actor, int(self.rings.counts[actor, TAKEN]))

    def done(self, actor: int, *, ahead: bool) -> None:
        """The slot of the step taken last is free again; ``ahead``: its actor may fill it now."""
        counts = self.rings.counts[actor]
        counts[TAKEN] += 1
        if ahead:
            counts[GRANTED] = counts[TAKEN] + self.rings.num_slots
        self._next = (actor + 1) % self.rings.num_actors
        if self.end.peers:
            self.end.peers[actor].notify()

    def grant_all(self) -> None:
        """Every actor may fill its ring, ahead of what replay takes."""
        counts = self.rings.counts
        counts[:, GRANTED] = counts[:, TAKEN] + self.rings.num_slots

    def granted(self) -> bool:
        """Whether some actor may put."""
        counts = self.rings.counts
        return bool((counts[:, GRANTED] > counts[:, TAKEN]).any())

    def turn(self, num_puts: int) -> int:
        """The actor whose turn it is after ``num_puts``, where they take turns."""
        return num_puts // self.steps_each % self.rings.num_actors

    def grant_next(self, num_puts: int) -> None:
        """The actor whose turn it is after ``num_puts`` may put what it does between two looks."""
        actor = self.turn(num_puts)
        self.rings.counts[actor, GRANTED] = self.rings.counts[actor, TAKEN] + self.steps_each

    def count(self, steps: int) -> None:
        """Tell all how many steps the run has made."""
        self.rings.status[0] = steps

    def counted(self) -> int:
        """What was told last, in whichever life."""
        return int(self.rings.status[0])


@dataclass(frozen=True)
class StepsPort:
    """Steps of environments, put into replay."""

    name: ClassVar[str] = "steps"
    kind: ClassVar[Kind] = "stream"
    about: ClassVar[str] = "steps of environments, put into replay"

    spec: StepSpec
    num_actors: int
    num_envs: int
    """Of each actor."""
    num_slots: int
    steps_each: int
    """Puts between two looks of an actor."""
    episode_width: int

    def traffic(self) -> tuple[int, str]:
        """One environment's step."""
        slot = slot_specs(self.spec, 1, self.episode_width)
        unsent = ("final_", "episodes")
        sizes = (spec.num_bytes for name, spec in slot.items() if not name.startswith(unsent))
        return sum(sizes), "step"

    def layout(self) -> dict[str, ArraySpec]:
        """Counts, and the slots of all actors."""
        axes = (self.num_actors, self.num_slots)
        slots = slot_specs(self.spec, self.num_envs, self.episode_width)
        return {
            "put": ArraySpec((self.num_actors, _LINE), _INT),
            "counts": ArraySpec((self.num_actors, _LINE), _INT),
            "status": ArraySpec((_LINE,), _INT),
            **{f"{_SLOT}{name}": spec.with_axes(*axes) for name, spec in slots.items()},
        }

    def client(self, end: End) -> RingSink:
        """An actor's end."""
        return RingSink(StepRings(end.arrays), end, self.steps_each)

    def server(self, end: End) -> RingSource:
        """Replay's end."""
        return RingSource(StepRings(end.arrays), end, self.steps_each)

    def for_one(self, client: int) -> StepsPort:
        """With one actor."""
        return replace(self, num_actors=1)

    def client_relay(self, arrays: Arrays) -> StepSender:
        """Beside an actor."""
        return StepSender(self, StepRings(arrays))

    def server_relay(self, end: End) -> StepReceiver:
        """In the place of an actor."""
        return StepReceiver(self, self.client(end))


_COUNTS = {"counts": ArraySpec((3,), _INT)}


class StepSender:
    """Sends what an actor puts; hears how many replay has taken, granted and counted."""

    def __init__(self, port: StepsPort, rings: StepRings) -> None:
        self.rings, self.sent = rings, int(rings.put[0])
        self.begun = self.sent
        rings.counts[0, GRANTED] = self.begun
        self.sends = slot_specs(port.spec, port.num_envs, port.episode_width)
        self.receives = _COUNTS

    def next(self) -> Arrays | None:
        """The oldest step that was not sent; what is not there is left out."""
        if self.sent == self.rings.put[0]:
            return None
        slot = self.rings.slot(0, self.sent)
        self.sent += 1
        absent = tuple(
            name
            for name, there in (
                ("final_obs/", slot.header[SAW_LAST]),
                ("final_extra/", slot.header[VALUED_LAST]),
                ("episodes", slot.header[NUM_ENDED]),
            )
            if not there
        )
        return {name: leaf for name, leaf in slot.arrays.items() if not name.startswith(absent)}

    def accept(self, frame: Arrays) -> None:
        """Counts of the other side."""
        taken, granted, steps = frame["counts"]
        self.rings.counts[0, TAKEN] = self.begun + taken
        self.rings.counts[0, GRANTED] = self.begun + granted
        self.rings.status[0] = steps


class StepReceiver:
    """Puts what another host's actor sent; tells how many were taken, granted and counted."""

    def __init__(self, port: StepsPort, sink: RingSink) -> None:
        self.sink, self.told = sink, (0, 0, 0)
        self.begun = int(sink.rings.put[sink.actor])
        self.sends = _COUNTS
        self.receives = slot_specs(port.spec, port.num_envs, port.episode_width)

    def next(self) -> Arrays | None:
        """The counts, when what the actor may put has changed; while it has room for more than half
        a ring, nobody waits for them."""
        rings, actor = self.sink.rings, self.sink.actor
        taken = int(rings.counts[actor, TAKEN]) - self.begun
        granted = int(rings.counts[actor, GRANTED]) - self.begun
        room = self.told[1] - (int(rings.put[actor]) - self.begun)
        if (taken, granted) == self.told[:2] or room > rings.num_slots // 2:
            return None
        self.told = (taken, granted, int(rings.status[0]))
        return {"counts": np.array(self.told)}

    def accept(self, frame: Arrays) -> None:
        """A step into the next slot."""
        rings, actor = self.sink.rings, self.sink.actor
        if rings.put[actor] >= rings.counts[actor, GRANTED]:
            raise RuntimeError("a step that was not granted")
        slot = rings.slot(actor, int(rings.put[actor]))
        for name, array in frame.items():
            slot.arrays[name][...] = array
        slot.check()
        rings.put[actor] += 1
        self.sink.end.notify_peers()
