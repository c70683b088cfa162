"""A table on its way to disk: in parts, of which only those need be written that changed.

Chunks of rows, and places of sequences with their recurrent states, are grouped in segments. Each
segment knows the table's revision at which it last changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from rookery.core.errors import UserError
from rookery.core.sequence import StepSpec
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.replay.frames import num_stacked
from rookery.replay.items import Items
from rookery.replay.settings import TableConfig
from rookery.replay.steps import StepStore

SEGMENT_ROWS = 8192
"""Rows of a segment, more or less: a few megabytes of compressed frames."""


class Part(NamedTuple):
    """One array of a snapshot."""

    name: str
    array: Array | None
    """None: it is in the caller's earlier snapshot as it is now."""
    unchanged_since: int
    """The table's revision at which it last changed."""


class Segments:
    """Which parts of the rows and states changed when."""

    def __init__(self, num_chunks: int, num_items: int, chunk_steps: int) -> None:
        self._chunks = max(SEGMENT_ROWS // chunk_steps, 1)
        self._items = SEGMENT_ROWS
        self._rows_changed = np.zeros(-(-num_chunks // self._chunks), np.int64)
        self._states_changed = np.zeros(-(-num_items // self._items), np.int64)

    def mark(self, store: StepStore, items: Items, revision: int) -> None:
        """What is dirty changed now."""
        for dirty, changed, size in (
            (store.dirty, self._rows_changed, self._chunks),
            (items.dirty, self._states_changed, self._items),
        ):
            for places in dirty:
                changed[places // size] = revision
            dirty.clear()

    def steps(self, store: StepStore, newer_than: int) -> Iterator[Part]:
        """The rows of all chunks."""
        for index, revision in enumerate(self._rows_changed.tolist()):
            begin = index * self._chunks
            end = min(begin + self._chunks, store.num_chunks)
            for name, column in store.columns.items():
                known = revision <= newer_than
                saved = {} if known else column.save(begin, end)
                for kind in column.parts:
                    yield Part(f"rows/{index:05d}/{name}/{kind}", saved.get(kind), revision)

    def states(self, items: Items, newer_than: int) -> Iterator[Part]:
        """The recurrent states of all sequences."""
        for index, revision in enumerate(self._states_changed.tolist()):
            begin = index * self._items
            for name, values in items.state.items():
                array = None if revision <= newer_than else values[begin : begin + self._items]
                yield Part(f"states/{index:05d}/{name}", array, revision)

    def save(self) -> Arrays:
        """When each segment changed."""
        return {"rows": self._rows_changed, "states": self._states_changed}

    def load(
        self, changed: Arrays, arrays: Mapping[str, Array], store: StepStore, items: Items
    ) -> None:
        """Put back the rows and states in ``arrays``; ``store`` knows which chunks are open."""
        self._rows_changed[:] = changed["rows"]
        self._states_changed[:] = changed["states"]
        open_chunks = store.open_chunks()
        for index in range(len(self._rows_changed)):
            begin = index * self._chunks
            end = min(begin + self._chunks, store.num_chunks)
            for name, column in store.columns.items():
                prefix = f"rows/{index:05d}/{name}"
                saved = {kind: arrays[f"{prefix}/{kind}"] for kind in column.parts}
                column.load(begin, end, saved, open_chunks)
        for index in range(len(self._states_changed)):
            begin = index * self._items
            for name, values in items.state.items():
                values[begin : begin + self._items] = arrays[f"states/{index:05d}/{name}"]


_WITHOUT = "remove the run's directory replay to fill it anew"


def described(config: TableConfig, spec: StepSpec, frames: frozenset[str]) -> dict[str, Any]:
    """What two tables must have in common for one to go on where the other was."""

    def leaf(array: ArraySpec) -> str:
        return f"{array.dtype.name}{list(array.shape)}"

    leaves = {f"observation '{name}'": leaf(array) for name, array in spec.obs.items()}
    leaves |= {f"state '{name}'": leaf(array) for name, array in spec.state.items()}
    leaves |= {f"extra '{name}'": leaf(array) for name, array in spec.extra.items()}
    leaves["action"] = leaf(spec.action)
    settings = asdict(config)
    for name in ("batch_size", "min_priority", "priority_exponent"):  # free to change
        settings.pop(name)
    shapes = {name: spec.obs[name].shape for name in frames}
    whole = sorted(name for name, shape in shapes.items() if num_stacked(shape) != shape[0])
    return {"leaves": leaves, "settings": settings, "frames": sorted(frames), "whole": whole}


def check_same(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Refuse a snapshot of another kind of table, and say what differs first."""
    for kind in ("leaves", "settings"):
        for name in [*saved[kind], *mine[kind]]:
            theirs, ours = saved[kind].get(name, "nothing"), mine[kind].get(name, "nothing")
            if theirs != ours:
                raise UserError(
                    f"replay: the snapshot was made with {name} {theirs}, this table has {ours}; "
                    f"resume with the same environment and settings, or {_WITHOUT}"
                )
    for kind, what in (("frames", "compressed images"), ("whole", "images of one frame")):
        if saved.get(kind, []) != mine[kind]:
            raise UserError(
                f"replay: the snapshot has {saved.get(kind, [])} as {what}, this table "
                f"{mine[kind]}; resume with the same settings, or {_WITHOUT}"
            )
