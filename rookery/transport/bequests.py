"""What each actor leaves to the one that takes its place, in memory that outlasts both.

One writer an actor, any number of readers, no lock: there are two places, and the one that was
written last is whole, even if the writer died in the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rookery.core.errors import RunFailed
from rookery.core.spec import Arrays, ArraySpec

READ_TRIES = 1000
_TURN = "turn"
_VALUE = "value/"


def bequest_specs(bequest: Mapping[str, ArraySpec], num_actors: int) -> dict[str, ArraySpec]:
    """What must be allocated for :class:`Bequests` of ``num_actors``, each like ``bequest``."""
    specs = {_TURN: ArraySpec((num_actors,), np.dtype(np.int64))}
    for name, spec in bequest.items():
        specs[f"{_VALUE}{name}"] = ArraySpec((num_actors, 2, *spec.shape), spec.dtype)
    return specs


class Bequests:
    """All ends: actors leave, the next ones read, and so does who saves a checkpoint."""

    def __init__(self, arrays: Arrays) -> None:
        self.turns = arrays[_TURN]
        """``[actors]`` how often each has left something; its last parity is the place."""
        self.values = {
            name.removeprefix(_VALUE): array
            for name, array in arrays.items()
            if name.startswith(_VALUE)
        }

    @property
    def num_actors(self) -> int:
        """For whom there is room."""
        return len(self.turns)

    def leave(self, actor: int, bequest: Arrays) -> None:
        """In the place of what ``actor`` left before."""
        turn = int(self.turns[actor]) + 1
        for name, places in self.values.items():
            places[actor, turn % 2] = bequest[name]
        self.turns[actor] = turn

    def fits(self, bequest: Arrays) -> bool:
        """Whether an actor of these settings could have left it."""
        return all(
            name in bequest and bequest[name].shape == places.shape[2:]
            for name, places in self.values.items()
        )

    def read(self, actor: int) -> Arrays | None:
        """A copy of what ``actor`` left last; None if nothing."""
        for _ in range(READ_TRIES):
            turn = int(self.turns[actor])
            if not turn or not self.values:
                return None
            found = {name: places[actor, turn % 2].copy() for name, places in self.values.items()}
            if int(self.turns[actor]) == turn:  # so nobody has begun to write here
                return found
        raise RunFailed(f"actor-{actor} wrote faster than it could be read, {READ_TRIES} times")
