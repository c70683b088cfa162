"""Batches of sequences on their way from replay to the learner, and their priorities back.

Each of K slots is memory for one batch. Whoever may write into it is told by its state, so a slot
has one writer at any time::

    FREE -- replay fills it --> FILLED -- the learner takes it --> TAKEN
      ^                                                              |
      +--- replay reads the priorities --- DONE <-- and learned from it

A replay process that died is replaced. Batches of the one before are as good to learn from as any;
but their keys say nothing to the new one, so their priorities are left out.

Shapes: K slots, N sequences of T steps, E episodes, W numbers that an episode tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rookery.core.group import Alone, Group, share_of
from rookery.core.ports import End, Kind
from rookery.core.sequence import Sample, Sequences, StepSpec
from rookery.core.spec import Array, Arrays, ArraySpec

FREE, FILLED, TAKEN, DONE = 0, 1, 2, 3
_STATE, _NUMBER, _LIFE, _STEPS, _ENDED = 0, 1, 2, 3, 4
STEPS, BEGUN = 0, 1
"""What replay tells beside batches: steps of the run, and whether any may be sampled."""
_INT, _DOUBLE = np.dtype(np.int64), np.dtype(np.float64)
MAX_EPISODES = 256
"""Episodes that one batch brings word of; more wait for the next."""
_GROUPS = ("obs", "state", "extra")
_FIELDS = ("reset", "action", "reward", "terminated", "truncated", "mask")


def sample_slot_specs(
    spec: StepSpec, *, num_slots: int, num_steps: int, batch_size: int, episode_width: int
) -> dict[str, ArraySpec]:
    """The arrays of :class:`SampleSlots`."""
    like = _flat(spec.sequences(num_steps, batch_size))
    return {
        "status": ArraySpec((8,), _INT),
        "header": ArraySpec((num_slots, 8), _INT),
        "keys": ArraySpec((num_slots, batch_size), _INT),
        "probability": ArraySpec((num_slots, batch_size), _DOUBLE),
        "priorities": ArraySpec((num_slots, batch_size), np.dtype(np.float32)),
        "episodes": ArraySpec((num_slots, MAX_EPISODES, episode_width), _DOUBLE),
        **{
            f"slot/{name}": ArraySpec((num_slots, *array.shape), array.dtype)
            for name, array in like.items()
        },
    }


class SampleSlots:
    """All slots, and what each end does with them."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.status = arrays["status"]
        self.header, self.keys = arrays["header"], arrays["keys"]
        self.probability, self.priorities = arrays["probability"], arrays["priorities"]
        self.episodes = arrays["episodes"]
        self.sequences = [
            _sequences(
                {
                    name.removeprefix("slot/"): array[slot]
                    for name, array in arrays.items()
                    if name.startswith("slot/")
                }
            )
            for slot in range(len(self.header))
        ]

    def in_state(self, state: int) -> list[int]:
        """Slots in ``state``, those with the lowest numbers first."""
        found = np.flatnonzero(self.header[:, _STATE] == state)
        order = np.argsort(self.header[found, _NUMBER], kind="stable")
        return [int(slot) for slot in found[order]]

    # ---- replay's side ---------------------------------------------------------------------------

    def fill(self, slot: int, sample: Sample, *, life: int, steps: int, episodes: Array) -> None:
        """Hand a batch over whose sequences were gathered into ``sequences[slot]``."""
        header = self.header[slot]
        self.keys[slot], self.probability[slot] = sample.keys, sample.probability
        self.episodes[slot, : len(episodes)] = episodes
        header[_LIFE], header[_STEPS], header[_ENDED] = life, steps, len(episodes)
        header[_NUMBER] = int(self.header[:, _NUMBER].max()) + 1
        header[_STATE] = FILLED  # last: from here on it is the learner's

    def read(self, slot: int, life: int) -> tuple[Array, Array] | None:
        """Keys and priorities of a slot that is DONE, None if another life filled it; frees it."""
        mine = int(self.header[slot, _LIFE]) == life
        told = (self.keys[slot].copy(), self.priorities[slot].copy()) if mine else None
        self.header[slot, _STATE] = FREE
        return told

    # ---- the learner's side ----------------------------------------------------------------------

    def take(self, mine: range) -> int:
        """The oldest batch of the slots ``mine``, which is now the learner's."""
        slot = next(slot for slot in self.in_state(FILLED) if slot in mine)
        self.header[slot, _STATE] = TAKEN
        return slot

    def give_back(self, slot: int) -> None:
        """Its priorities are written: it is replay's again."""
        self.header[slot, _STATE] = DONE


class SlotSource:
    """The learner's end (a :class:`~rookery.core.ports.SequenceSource`).

    Of several learners together the first takes a slot and tells the others which. Each writes the
    priorities of its columns, and the first hands the slot back once all have: when they meet to
    take the next. Learners that do not meet have slots of their own: every ``stride``-th.
    """

    def __init__(self, slots: SampleSlots, end: End, *, stride: int = 1) -> None:
        self.slots, self.end = slots, end
        self.mine = range(end.replica % stride, len(slots.header), stride)
        self.slot = -1
        self._told = 0, slots.episodes[0, :0]
        self.join(Alone())

    def join(self, group: Group) -> None:
        """Take batches together with ``group``."""
        self.group = group
        self.columns = share_of(self.slots.priorities.shape[1], group)

    def can_sample(self) -> bool:
        """Whether a batch is there."""
        return bool((self.slots.header[self.mine, _STATE] == FILLED).any())

    def filling(self) -> bool:
        """Whether replay has too little to learn from yet."""
        return not self.slots.status[BEGUN]

    def sample(self) -> Sample:
        """The oldest batch."""
        slots, before = self.slots, self.slot
        if self.group.rank == 0:
            self.slot = slots.take(self.mine)
        if self.group.size > 1:
            self.slot = int(self.group.first(np.array([self.slot], np.float64))[0])
            if before >= 0:
                self._give_back(before)
        header = slots.header[self.slot]
        self._told = int(header[_STEPS]), slots.episodes[self.slot, : header[_ENDED]].copy()
        return Sample(
            slots.keys[self.slot], slots.probability[self.slot], slots.sequences[self.slot]
        )

    def release(self, priorities: Array) -> None:
        """Give the batch back."""
        self.slots.priorities[self.slot, self.columns] = priorities
        if self.group.size == 1:
            self._give_back(self.slot)

    def _give_back(self, slot: int) -> None:
        if self.group.rank == 0:
            self.slots.give_back(slot)
            self.end.notify_peers()

    def progress(self) -> tuple[int, Array]:
        """What came with the batch taken last."""
        return self._told

    def total_steps(self) -> int:
        """What replay has counted."""
        return int(self.slots.status[STEPS])

    def wait(self, timeout_secs: float) -> None:
        """Sleep until replay has filled one."""
        self.end.own.wait(timeout_secs)


class SlotServer:
    """Replay's end: slots to fill, priorities to read, and what it counts."""

    def __init__(self, slots: SampleSlots, end: End, *, stride: int = 1) -> None:
        self.slots, self.end, self.stride = slots, end, stride

    def tell(self, steps: int, begun: bool) -> None:
        """Steps of the run, and whether any may be sampled."""
        self.slots.status[STEPS], self.slots.status[BEGUN] = steps, begun


@dataclass(frozen=True)
class SequencesPort:
    """Sequences sampled from replay, their priorities back."""

    name: ClassVar[str] = "sequences"
    kind: ClassVar[Kind] = "call"
    about: ClassVar[str] = "sequences sampled from replay, their priorities back"

    spec: StepSpec
    num_slots: int
    num_steps: int
    """Of a sequence, with what comes before and after the learned ones."""
    batch_size: int
    episode_width: int
    stride: int = 1
    """Learners that take batches of their own; 1: all take the same."""

    def traffic(self) -> tuple[int, str]:
        """One batch and its priorities."""
        layout = self.layout()
        return sum(spec.num_bytes for spec in layout.values()) // self.num_slots, "update"

    def layout(self) -> dict[str, ArraySpec]:
        """The slots."""
        return sample_slot_specs(
            self.spec,
            num_slots=self.num_slots,
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            episode_width=self.episode_width,
        )

    def client(self, end: End) -> SlotSource:
        """A learner's end."""
        return SlotSource(SampleSlots(end.arrays), end, stride=self.stride)

    def server(self, end: End) -> SlotServer:
        """Replay's end."""
        return SlotServer(SampleSlots(end.arrays), end, stride=self.stride)

    def for_one(self, client: int) -> SequencesPort:
        """The same slots, all of one learner."""
        return replace(self, stride=1)

    def client_relay(self, arrays: Arrays) -> BatchReceiver:
        """Beside a learner."""
        return BatchReceiver(SampleSlots(arrays), self.layout())

    def server_relay(self, end: End) -> BatchSender:
        """In the place of a learner."""
        return BatchSender(self.client(end), self.layout())


_TOKEN = {"token": ArraySpec((1,), _INT)}


def _frames(
    layout: Mapping[str, ArraySpec],
) -> tuple[dict[str, ArraySpec], dict[str, ArraySpec]]:
    """What replay's host sends, and what the learner's sends back."""
    one = {
        name: ArraySpec(spec.shape[1:], spec.dtype)
        for name, spec in layout.items()
        if name not in ("status", "priorities")
    }
    back = layout["priorities"]
    status = layout["status"]
    return (
        {**_TOKEN, "status": status, **one},
        {**_TOKEN, "priorities": ArraySpec(back.shape[1:], back.dtype)},
    )


class BatchSender:
    """Sends a batch whenever one is filled; gives it back when its priorities come."""

    def __init__(self, source: SlotSource, layout: Mapping[str, ArraySpec]) -> None:
        self.source, self.told = source, (0, 0)
        self.sends, self.receives = _frames(layout)
        for slot in self._taken():  # by a learner that will not give them back
            source.slots.header[slot, _STATE] = FREE

    def _taken(self) -> list[int]:
        return [slot for slot in self.source.slots.in_state(TAKEN) if slot in self.source.mine]

    def next(self) -> Arrays | None:
        """A batch; without one, how far replay is while it fills."""
        slots = self.source.slots
        status = int(slots.status[STEPS]), int(slots.status[BEGUN])
        if self.source.can_sample():
            slot = slots.take(self.source.mine)
            self.told = status
            names = [name for name in self.sends if name not in ("token", "status")]
            frame = {name: slots.arrays[name][slot] for name in names}
            return {"token": np.array([slot]), "status": slots.status.copy(), **frame}
        if self.source.filling() and status != self.told:
            self.told = status
            return {"status": slots.status.copy()}
        return None

    def accept(self, frame: Arrays) -> None:
        """Priorities of a batch that was learned from."""
        slot = int(frame["token"][0])
        if slot not in self._taken():
            raise RuntimeError(f"priorities of batch slot {slot}, which was not sent")
        self.source.slots.priorities[slot] = frame["priorities"]
        self.source.slots.give_back(slot)
        self.source.end.notify_peers()


class BatchReceiver:
    """Puts batches from another host into slots here; sends their priorities back."""

    def __init__(self, slots: SampleSlots, layout: Mapping[str, ArraySpec]) -> None:
        self.slots = slots
        self.tokens: dict[int, int] = {}
        """Which slot of the other host's each slot here holds."""
        self.receives, self.sends = _frames(layout)

    def next(self) -> Arrays | None:
        """Priorities of the oldest batch that was learned from."""
        done = self.slots.in_state(DONE)
        if not done:
            return None
        slot = done[0]
        frame = {
            "token": np.array([self.tokens.pop(slot)]),
            "priorities": self.slots.priorities[slot].copy(),
        }
        self.slots.header[slot, _STATE] = FREE
        return frame

    def accept(self, frame: Arrays) -> None:
        """A batch, or how far replay is."""
        self.slots.status[:] = frame["status"]
        if "token" not in frame:
            return
        slot = self.slots.in_state(FREE)[0]
        for name, array in frame.items():
            if name not in ("token", "status", "header"):
                self.slots.arrays[name][slot] = array
        self.tokens[slot] = int(frame["token"][0])
        self.slots.header[slot, 1:] = frame["header"][1:]
        self.slots.header[slot, _STATE] = FILLED


def _flat(sequences: Sequences) -> Arrays:
    flat: Arrays = {name: getattr(sequences, name) for name in _FIELDS}
    for group in _GROUPS:
        flat |= {f"{group}/{name}": leaf for name, leaf in getattr(sequences, group).items()}
    return flat


def _sequences(arrays: Arrays) -> Sequences:
    groups: dict[str, Any] = {group: {} for group in _GROUPS}
    for name, array in arrays.items():
        group, _, leaf = name.partition("/")
        if leaf:
            groups[group][leaf] = array
    return Sequences(**groups | {name: arrays[name] for name in _FIELDS})
