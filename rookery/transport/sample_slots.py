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

import math
import time
from typing import Any

import numpy as np

from rookery.core.group import Alone, Group, share_of
from rookery.core.sequence import Sequences, StepSpec
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.replay.table import Sample
from rookery.transport.wake import Wake

FILLING_SECS = 2.0
"""Without a batch for so long, replay is taken to fill up."""

FREE, FILLED, TAKEN, DONE = 0, 1, 2, 3
_STATE, _NUMBER, _LIFE, _STEPS, _ENDED = 0, 1, 2, 3, 4
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


class SlotSource:
    """The learner's end (a :class:`~rookery.roles.replay_learner.SequenceSource`).

    Of several learners together the first takes a slot and tells the others which. Each writes the
    priorities of its columns, and the first hands the slot back once all have: when they meet to
    take the next. Learners that do not meet have slots of their own: every ``stride``-th from
    ``first`` on. ``steps`` ``[1]`` is what replay has counted.
    """

    def __init__(
        self,
        slots: SampleSlots,
        *,
        steps: Array,
        own: Wake | None = None,
        other: Wake | None = None,
        group: Group | None = None,
        first: int = 0,
        stride: int = 1,
    ) -> None:
        self.slots, self.steps = slots, steps
        self.mine = range(first, len(slots.header), stride)
        self.bell, self.replay_bell = own, other
        self.group = group or Alone()
        self.columns = share_of(slots.priorities.shape[1], self.group)
        self.slot = -1
        self._filled_at = -math.inf
        self._told = 0, slots.episodes[0, :0]

    def can_sample(self) -> bool:
        """Whether a batch is there."""
        there = bool((self.slots.header[self.mine, _STATE] == FILLED).any())
        if there:
            self._filled_at = time.monotonic()
        return there

    def filling(self) -> bool:
        """Whether no batch has come yet, or none for so long that replay must have begun anew."""
        return time.monotonic() - self._filled_at > FILLING_SECS

    def sample(self) -> Sample:
        """The oldest batch."""
        slots, before = self.slots, self.slot
        if self.group.rank == 0:
            self.slot = next(slot for slot in slots.in_state(FILLED) if slot in self.mine)
            slots.header[self.slot, _STATE] = TAKEN
        if self.group.size > 1:
            self.slot = int(self.group.first(np.array([self.slot], np.float64))[0])
            if before >= 0:
                self._hand_back(before)
        header = slots.header[self.slot]
        self._told = int(header[_STEPS]), slots.episodes[self.slot, : header[_ENDED]].copy()
        return Sample(
            slots.keys[self.slot], slots.probability[self.slot], slots.sequences[self.slot]
        )

    def release(self, priorities: Array) -> None:
        """Give the batch back."""
        self.slots.priorities[self.slot, self.columns] = priorities
        if self.group.size == 1:
            self._hand_back(self.slot)

    def _hand_back(self, slot: int) -> None:
        if self.group.rank:
            return
        self.slots.header[slot, _STATE] = DONE
        if self.replay_bell is not None:
            self.replay_bell.ring()

    def progress(self) -> tuple[int, Array]:
        """What came with the batch taken last."""
        return self._told

    def total_steps(self) -> int:
        """What replay has counted."""
        return int(self.steps[0])

    def missing(self) -> list[int]:
        """Nobody in particular."""
        return []

    def wait(self, timeout_secs: float) -> None:
        """Sleep until replay has filled one."""
        if self.bell is not None:
            self.bell.wait(timeout_secs)


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
