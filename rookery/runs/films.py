"""Which saved policies are filmed while a run trains: one at a time, the newest that waits.

::

    films.want(steps)                     # at a checkpoint; one that still waited is skipped
    if (steps := films.next()) is not None:
        ask(steps)
    films.done(steps)                     # when the answer comes
"""

from __future__ import annotations

from rookery.runs.checkpoint import CheckpointStore


class Films:
    """Keeps the checkpoints that are filmed, or wait for it, from being pruned: at most two."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self.waiting: int | None = None
        self.asked: int | None = None
        self.made = 0
        self.skipped = 0
        """Because a newer one came before there was time."""
        self.newest = -1
        """The last that was wanted."""

    @property
    def open(self) -> bool:
        """Whether a film is being made, or waits."""
        return self.asked is not None or self.waiting is not None

    @property
    def due(self) -> int | None:
        """The newest checkpoint of which there is no film yet that was wanted."""
        return self.waiting if self.waiting is not None else self.asked

    def want(self, steps: int) -> None:
        """Film the checkpoint of ``steps``, in the place of one that still waits."""
        if self.waiting is not None:
            self.store.release(self.waiting)
            self.skipped += 1
        self.waiting = self.newest = steps
        self.store.protect(steps)

    def next(self) -> int | None:
        """The checkpoint to ask for, if none is being filmed."""
        if self.asked is not None or self.waiting is None:
            return None
        self.asked, self.waiting = self.waiting, None
        return self.asked

    def ask_again(self, steps: int) -> None:
        """Nobody will answer for ``steps``: it waits again, unless a newer one does."""
        if steps != self.asked:
            return
        self.asked = None
        if self.waiting is None:
            self.waiting = steps
        else:
            self.store.release(steps)
            self.skipped += 1

    def done(self, steps: int) -> bool:
        """The film of ``steps`` is made, or cannot be; whether anybody had asked for it."""
        if steps != self.asked:
            return False
        self.asked = None
        self.store.release(steps)
        return True
