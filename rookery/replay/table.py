"""Replay: steps go in, sequences come out, often those from which most is to be learned.

::

    table = Table(config, spec)
    keys = table.put(steps)                            # one step of some environments
    table.update_priorities(keys, first_priorities)    # or leave them at the highest so far

    out = table.allocate(batch_size)
    while learning:
        sample = table.sample(batch_size, rng, out)
        ... learn from sample.sequences; sample.probability gives importance weights ...
        table.update_priorities(sample.keys, priorities)

Each step is kept once, however many sequences it is in. Full, the table drops its oldest chunk of
steps with the sequences that begin in it; keys of those are known to be gone, and a late update of
their priorities changes nothing.

Shapes: B environments, N sequences of T steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rookery.core.errors import UserError
from rookery.core.sequence import Sample, Sequences, Steps, StepSpec
from rookery.core.spec import Array, Arrays
from rookery.replay.items import Items
from rookery.replay.memory import image_leaves, make_columns
from rookery.replay.rows import checked, final_values_of, values_of
from rookery.replay.sequences import SequenceBuilder, Windows
from rookery.replay.settings import TableConfig
from rookery.replay.snapshot import Part, Segments, check_same, described
from rookery.replay.steps import NONE, StepStore
from rookery.replay.sum_tree import SumTree


class Table:
    """Steps of ``config.num_streams`` environments and the sequences they make.

    Observation leaves named in ``frames`` are stacks of frames, kept once and compressed; None
    takes all uint8 leaves of at least three axes.
    """

    def __init__(
        self, config: TableConfig, spec: StepSpec, frames: frozenset[str] | None = None
    ) -> None:
        self.config, self.spec = config, spec
        self.frames = image_leaves(spec) if frames is None else frames
        if unknown := self.frames - set(spec.obs):
            raise UserError(f"replay: no observation leaf is called {sorted(unknown)}")
        self.num_stale_updates = 0
        """Priority updates ignored because their sequence was gone."""
        self.num_lost = 0
        """Sequences whose first steps were dropped before they were complete."""
        self.max_priority = 1.0
        """The highest priority so far, which new sequences get."""
        self.revision = 0
        """How often the table was changed."""
        self._size = 0
        self._builder = SequenceBuilder(config.sequence, config.num_streams)
        chunks, steps = config.num_chunks, config.chunk_steps
        self._store = StepStore(
            make_columns(spec, self.frames, chunks, steps),
            num_chunks=chunks,
            chunk_steps=steps,
            num_streams=config.num_streams,
            on_drop=self._drop,
        )
        self._items = Items(config.num_places, chunks, steps, spec.state)
        self._tree = SumTree(config.num_places)
        # Keys of the sequences under way, by stream and window.
        self._pending = np.full((config.num_streams, config.sequence.max_pending), NONE, np.int64)
        self._batch_row = np.zeros(config.num_streams, np.int64)
        self._segments = Segments(chunks, config.num_places, steps)

    # ---- what is in it -------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Complete sequences that can be sampled."""
        return self._size

    @property
    def num_steps(self) -> int:
        """Rows held now: steps, and the last observation of each episode."""
        return self._store.num_rows

    def memory_bytes(self) -> int:
        """Bytes of everything that the table holds now."""
        return self._store.num_bytes + self._items.num_bytes + self._tree.num_bytes

    # ---- putting -------------------------------------------------------------------------------

    def put(self, steps: Steps) -> Array:
        """Add one step of some environments; keys of the sequences that it completes."""
        steps = checked(steps, self.spec, self.config.num_streams)
        if not len(steps.stream):
            return np.zeros(0, np.int64)
        self.revision += 1
        streams = steps.stream
        rows = self._store.append(streams, values_of(steps, self.spec))
        self._batch_row[streams] = np.arange(len(streams))
        for windows in self._builder.begin(streams):
            self._begin(windows, rows, steps.state)
        keys = [self._finish(self._builder.complete(streams))]
        ended = steps.terminated | steps.truncated
        if np.count_nonzero(ended):
            self._store.append(streams[ended], final_values_of(steps, ended, self.spec))
            keys.append(self._finish(self._builder.end(streams[ended])))
            self._forget_pending(streams[ended])
        self._mark()
        return np.concatenate(keys)

    def abandon(self, streams: Array) -> None:
        """The running episodes of ``streams`` will not go on: their actor is gone or starts anew.

        What they completed stays; what was under way is dropped.
        """
        self.revision += 1
        self._builder.forget(streams)
        self._forget_pending(streams)
        self._mark()

    def _begin(self, windows: Windows, rows: Array, state: Arrays) -> None:
        while self._items.num_free < len(windows.stream):
            if not self._store.drop_oldest():
                raise RuntimeError("all places for sequences are under way")  # config forbids it
        batch = self._batch_row[windows.stream]
        fresh = self._builder.position(windows.stream) == 0
        mine = {name: values[batch] for name, values in state.items()}
        places = self._items.take(rows[batch], fresh, mine)
        self._items.padding[places] = windows.padding
        slot = windows.number % self._pending.shape[1]
        self._pending[windows.stream, slot] = self._items.keys(places)

    def _finish(self, windows: Windows) -> Array:
        """Let complete windows be sampled; their keys."""
        if not len(windows.stream):
            return windows.stream
        slot = windows.number % self._pending.shape[1]
        keys: Array = self._pending[windows.stream, slot]
        self._pending[windows.stream, slot] = NONE
        places, there = self._items.find(keys)
        self.num_lost += int(np.count_nonzero(~there))
        places = places[there]
        self._items.num_steps[places] = windows.num_steps[there]
        self._tree.set(places, np.full(len(places), self._weight(self.max_priority)))
        self._size += len(places)
        completed: Array = keys[there]
        return completed

    def _forget_pending(self, streams: Array) -> None:
        keys = self._pending[streams]
        places, there = self._items.find(keys[keys != NONE])
        self._items.give_back(places[there])
        self._pending[streams] = NONE

    def _drop(self, chunk: int) -> None:
        """The rows of ``chunk`` go: so do all sequences that begin in it."""
        places = self._items.begin_in(chunk)
        self._size -= int(np.count_nonzero(self._items.num_steps[places]))
        self._tree.set(places, np.zeros(len(places)))
        self._items.give_back(places)

    # ---- sampling ------------------------------------------------------------------------------

    def can_sample(self) -> bool:
        """Whether there is anything to sample."""
        return self._size > 0

    def allocate(self, num: int) -> Sequences:
        """Memory for ``num`` sequences, to be filled again and again."""
        return self.spec.sequences(self.config.sequence.num_steps, num)

    def sample(self, num: int, rng: np.random.Generator, out: Sequences | None = None) -> Sample:
        """``num`` sequences, chosen by their priorities; one may come more than once."""
        if not self._size:
            raise ValueError("the replay table is empty; ask can_sample first")
        places, probability = self._tree.sample(num, rng)
        out = self.allocate(num) if out is None else out
        self._gather(places, out)
        return Sample(self._items.keys(places), probability, out)

    def gather(self, keys: Array, out: Sequences | None = None) -> Sequences:
        """The sequences of ``keys`` ``[N]``, all of which must still be there."""
        places, there = self._items.find(keys)
        if not (there & (self._items.num_steps[places] > 0)).all():
            raise ValueError("a sequence of these keys is no longer in the table")
        out = self.allocate(len(keys)) if out is None else out
        self._gather(places, out)
        return out

    def update_priorities(self, keys: Array, priorities: Array) -> None:
        """Give those sequences of ``keys`` ``[N]`` that are still there their ``priorities``."""
        priorities = np.asarray(priorities, np.float64)
        wrong = ~(np.isfinite(priorities) & (priorities >= 0.0))
        if wrong.any():
            raise UserError(
                f"replay: a priority of {priorities[wrong][0]} was given; priorities must be "
                "finite and not negative: look for NaN in the loss"
            )
        places, there = self._items.find(keys)
        there &= self._items.num_steps[places] > 0
        self.num_stale_updates += int(np.count_nonzero(~there))
        if not there.any():
            return
        self.revision += 1
        self.max_priority = max(self.max_priority, float(priorities[there].max()))
        self._tree.set(places[there], self._weight(priorities[there]))

    def priorities(self, keys: Array) -> Array:
        """``[N]`` odds of ``keys`` before division by their sum; 0 for those that are gone."""
        places, there = self._items.find(keys)
        return np.where(there, self._tree.get(places), 0.0)

    def _weight(self, priority: Any) -> Any:
        return np.maximum(priority, self.config.min_priority) ** self.config.priority_exponent

    def _gather(self, places: Array, out: Sequences) -> None:
        items, total = self._items, self.config.sequence.num_steps
        padding, steps = items.padding[places], items.num_steps[places]
        rows = self._store.rows_of(items.first_row[places], padding, steps + 1, total + 1)
        columns = self._store.columns
        for name, leaf in out.obs.items():
            columns[f"obs/{name}"].read(rows, leaf)
        for name, leaf in out.extra.items():
            columns[f"extra/{name}"].read(rows, leaf)
        at = np.arange(total)[:, None]
        np.logical_and(at >= padding, at < padding + steps, out=out.mask)
        # A row that holds only an episode's last observation has zeros for all that was not done.
        for field in ("action", "reward", "terminated", "truncated"):
            columns[field].read(rows[:-1], getattr(out, field))
        out.reset[:] = False
        first = items.begins_episode[places]
        out.reset[padding[first], np.flatnonzero(first)] = True
        for name, leaf in out.state.items():
            np.take(items.state[name], places, axis=0, out=leaf, mode="clip")

    # ---- saving --------------------------------------------------------------------------------

    def snapshot(self, newer_than: int = -1) -> Iterator[Part]:
        """All that :meth:`load_state_dict` needs, part by part, as the table is now.

        ``newer_than`` is the ``revision`` of a snapshot that the caller has: parts that are in it
        as they are now come without their array. Write each part, or copy it, before the next put::

            for part in table.snapshot(newer_than=last):
                link(part.name) if part.array is None else write(part.name, part.array)
            last = table.revision
        """
        yield from self._segments.steps(self._store, newer_than)
        yield from self._segments.states(self._items, newer_than)
        small = {f"steps/{name}": array for name, array in self._store.save().items()}
        small |= {f"items/{name}": array for name, array in self._items.save().items()}
        small |= {f"streams/{name}": array for name, array in self._builder.state_dict().items()}
        small |= {"streams/pending": self._pending, "weights": self._tree.weights}
        small |= {f"changed/{name}": array for name, array in self._segments.save().items()}
        for name, array in small.items():
            yield Part(name, array, self.revision)

    def state_data(self) -> dict[str, Any]:
        """The JSON data that goes with :meth:`snapshot`."""
        return {
            "format": described(self.config, self.spec, self.frames),
            "revision": self.revision,
            "max_priority": self.max_priority,
            "num_stale_updates": self.num_stale_updates,
            "num_lost": self.num_lost,
        }

    def state_dict(self) -> tuple[Arrays, dict[str, Any]]:
        """Arrays and JSON data that :meth:`load_state_dict` continues from; copies."""
        arrays = {
            part.name: part.array.copy() for part in self.snapshot() if part.array is not None
        }
        return arrays, self.state_data()

    def load_state_dict(self, arrays: Mapping[str, Array], data: dict[str, Any]) -> None:
        """Become the table that was saved, which must have had the same settings and spaces."""
        check_same(data["format"], described(self.config, self.spec, self.frames))

        def under(prefix: str) -> Arrays:
            return {
                name.removeprefix(prefix): array
                for name, array in arrays.items()
                if name.startswith(prefix)
            }

        self._store.load(under("steps/"))
        self._items.load(under("items/"))
        self._builder.load_state_dict(under("streams/"))
        self._pending[:] = arrays["streams/pending"]
        self._tree.refill(arrays["weights"])
        self._segments.load(under("changed/"), arrays, self._store, self._items)
        self._size = int(np.count_nonzero(arrays["weights"]))
        self.revision, self.max_priority = int(data["revision"]), float(data["max_priority"])
        self.num_stale_updates, self.num_lost = (
            int(data["num_stale_updates"]),
            int(data["num_lost"]),
        )

    def _mark(self) -> None:
        self._segments.mark(self._store, self._items, self.revision)
