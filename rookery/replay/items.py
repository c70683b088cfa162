"""The sequences of a table: where each begins, its recurrent state, and whether it is still there.

A place for a sequence is taken when its first row is written and given back with that row's chunk.
It is told by a **key**, which counts how often its place was taken: the key of a sequence that is
gone is never that of another.

Shapes: K places, N sequences, C chunks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.replay.steps import NONE


class Items:
    """``num_items`` places for sequences that begin in ``num_chunks`` chunks of rows."""

    def __init__(
        self, num_items: int, num_chunks: int, chunk_steps: int, state: Mapping[str, ArraySpec]
    ) -> None:
        self.num_items = num_items
        self.first_row = np.full(num_items, NONE, np.int64)
        """``[K]`` first real row, -1 where the place is free."""
        self.padding = np.zeros(num_items, np.int32)
        """``[K]`` rows of padding in front."""
        self.num_steps = np.zeros(num_items, np.int32)
        """``[K]`` real steps; 0 while the sequence is not complete."""
        self.begins_episode = np.zeros(num_items, np.bool_)
        """``[K]`` its first real row is the first of an episode."""
        self.state = {
            name: np.zeros((num_items, *spec.shape), spec.dtype) for name, spec in state.items()
        }
        """Leaves ``[K, ...]``: the recurrent state before the first real row."""
        self.dirty: list[Array] = []
        """Places whose state was written since the caller last cleared this."""
        self._chunk_steps = chunk_steps
        self._taken = np.zeros(num_items, np.int64)  # how often each place was taken
        self._free = np.arange(num_items)  # a ring of free places, oldest first
        self._free_from, self._num_free = 0, num_items
        # Places that begin in one chunk are a list, linked both ways.
        self._head = np.full(num_chunks, NONE, np.int64)
        self._before = np.full(num_items, NONE, np.int64)
        self._after = np.full(num_items, NONE, np.int64)

    @property
    def num_free(self) -> int:
        """Places that can be taken."""
        return self._num_free

    @property
    def num_bytes(self) -> int:
        """Bytes of everything here."""
        arrays: list[Array] = [self.first_row, self.padding, self.num_steps, self.begins_episode]
        arrays += [self._taken, self._free, self._head, self._before, self._after]
        return sum(array.nbytes for array in [*arrays, *self.state.values()])

    def take(self, rows: Array, begins_episode: Array, state: Arrays) -> Array:
        """Places ``[N]`` for sequences that begin at ``rows`` ``[N]``, in N different chunks."""
        num = len(rows)
        if num > self._num_free:
            raise ValueError(f"{num} places asked for, {self._num_free} are free")
        places = self._free[(self._free_from + np.arange(num)) % self.num_items]
        self._free_from = (self._free_from + num) % self.num_items
        self._num_free -= num
        self.first_row[places] = rows
        self.num_steps[places] = 0
        self.begins_episode[places] = begins_episode
        for name, values in self.state.items():
            values[places] = state[name]
            self.dirty.append(places)
        self._link(places)
        return places

    def keys(self, places: Array) -> Array:
        """``[N]`` keys of ``places``."""
        return self._taken[places] * self.num_items + places

    def find(self, keys: Array) -> tuple[Array, Array]:
        """``[N]`` places of ``keys``, and whether each still holds that sequence."""
        keys = np.asarray(keys, np.int64)
        times, places = np.divmod(keys, self.num_items)
        return places, (keys >= 0) & (self._taken[places] == times) & (self.first_row[places] >= 0)

    def begin_in(self, chunk: int) -> Array:
        """Places of the sequences that begin in ``chunk``, sorted: a resumed table frees alike."""
        found, place = [], int(self._head[chunk])
        while place != NONE:
            found.append(place)
            place = int(self._after[place])
        return np.array(sorted(found), np.int64)

    def give_back(self, places: Array) -> None:
        """Free ``places`` (distinct, taken)."""
        for place in places.tolist():
            before, after = int(self._before[place]), int(self._after[place])
            if before == NONE:
                self._head[int(self.first_row[place]) // self._chunk_steps] = after
            else:
                self._after[before] = after
            if after != NONE:
                self._before[after] = before
        self.first_row[places] = NONE
        self._taken[places] += 1
        end = self._free_from + self._num_free
        self._free[(end + np.arange(len(places))) % self.num_items] = places
        self._num_free += len(places)

    def save(self) -> Arrays:
        """Everything but the recurrent states."""
        free = self._free[(self._free_from + np.arange(self._num_free)) % self.num_items]
        return {
            "first_row": self.first_row,
            "padding": self.padding,
            "num_steps": self.num_steps,
            "begins_episode": self.begins_episode,
            "taken": self._taken,
            "free": free,
        }

    def load(self, arrays: Arrays) -> None:
        """Continue from what :meth:`save` gave."""
        for name in ("first_row", "padding", "num_steps", "begins_episode"):
            getattr(self, name)[:] = arrays[name]
        self._taken[:] = arrays["taken"]
        self._free_from, self._num_free = 0, len(arrays["free"])
        self._free[: self._num_free] = arrays["free"]
        self._relink()

    def _link(self, places: Array) -> None:
        chunks = self.first_row[places] // self._chunk_steps
        heads = self._head[chunks]
        self._before[places], self._after[places] = NONE, heads
        self._before[heads[heads != NONE]] = places[heads != NONE]
        self._head[chunks] = places

    def _relink(self) -> None:
        """The lists of all chunks, from where the sequences begin."""
        places = np.flatnonzero(self.first_row >= 0)
        chunks = self.first_row[places] // self._chunk_steps
        order = np.argsort(chunks, kind="stable")
        places, chunks = places[order], chunks[order]
        same = chunks[1:] == chunks[:-1]
        for links in (self._head, self._before, self._after):
            links[:] = NONE
        self._after[places[:-1][same]] = places[1:][same]
        self._before[places[1:][same]] = places[:-1][same]
        firsts = np.concatenate([[True], ~same])[: len(places)]
        self._head[chunks[firsts]] = places[firsts]
