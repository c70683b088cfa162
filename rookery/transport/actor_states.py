"""Carried-over actor state: what each actor leaves to the one that takes its place.

One writer an actor, any number of readers, no lock: there are two places, and the one that was
written last is whole, even if the writer died in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from rookery.core.errors import RunFailed
from rookery.core.ports import End, Kind
from rookery.core.spec import Arrays, ArraySpec, under

READ_TRIES = 1000
_TURN = "turn"
_VALUE = "value/"


class ActorStates:
    """The states of all actors."""

    def __init__(self, arrays: Arrays) -> None:
        self.turns = arrays[_TURN]
        """``[actors]`` how often each has left something; its last parity is the place."""
        self.values = under(_VALUE, arrays)

    @property
    def num_actors(self) -> int:
        """For whom there is room."""
        return len(self.turns)

    def write(self, actor: int, state: Arrays) -> bool:
        """In the place of what ``actor`` left before; False if it is of another kind."""
        if not self._fits(state):
            return False
        turn = int(self.turns[actor]) + 1
        for name, places in self.values.items():
            places[actor, turn % 2] = state[name]
        self.turns[actor] = turn
        return True

    def _fits(self, state: Arrays) -> bool:
        return all(
            name in state and state[name].shape == places.shape[2:]
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


class ActorStateEnd:
    """One actor's end (an :class:`~rookery.core.ports.ActorStateCell`)."""

    def __init__(self, states: ActorStates, actor: int) -> None:
        self.states, self.actor = states, actor

    def save(self, state: Arrays) -> None:
        """In the place of what was there."""
        self.states.write(self.actor, state)

    def load(self) -> Arrays | None:
        """What the actor before left; None if nothing."""
        return self.states.read(self.actor)


@dataclass(frozen=True)
class ActorStatesPort:
    """What actors leave to those after them; the server keeps it in checkpoints."""

    name: ClassVar[str] = "actor_state"
    kind: ClassVar[Kind] = "cell"
    about: ClassVar[str] = "what an actor leaves to the one that takes its place"

    spec: Mapping[str, ArraySpec]
    """One actor's state."""
    num_actors: int

    def traffic(self) -> tuple[int, str]:
        """One actor's state."""
        return sum(spec.num_bytes for spec in self.spec.values()), "episode"

    def layout(self) -> dict[str, ArraySpec]:
        """Two places for each actor."""
        specs = {_TURN: ArraySpec((self.num_actors,), np.dtype(np.int64))}
        for name, spec in self.spec.items():
            specs[f"{_VALUE}{name}"] = spec.with_axes(self.num_actors, 2)
        return specs

    def client(self, end: End) -> ActorStateEnd:
        """An actor's end."""
        return ActorStateEnd(ActorStates(end.arrays), end.replica)

    def server(self, end: End) -> ActorStates:
        """Where checkpoints are made."""
        return ActorStates(end.arrays)

    def for_one(self, client: int) -> ActorStatesPort:
        """With one actor."""
        return replace(self, num_actors=1)

    def client_relay(self, arrays: Arrays) -> StateRelay:
        """Beside an actor."""
        return StateRelay(ActorStates(arrays), 0, self.spec)

    def server_relay(self, end: End) -> StateRelay:
        """In the place of an actor."""
        return StateRelay(ActorStates(end.arrays), end.replica, self.spec)


class StateRelay:
    """Either side: sends what was written here, takes what was written there."""

    def __init__(self, states: ActorStates, actor: int, spec: Mapping[str, ArraySpec]) -> None:
        self.states, self.actor, self.known = states, actor, 0
        self.sends = self.receives = dict(spec)

    def next(self) -> Arrays | None:
        """What was written since."""
        turn = int(self.states.turns[self.actor])
        if turn == self.known:
            return None
        self.known = turn
        return self.states.read(self.actor)

    def accept(self, frame: Arrays) -> None:
        """What was written there."""
        self.states.write(self.actor, frame)
        self.known = int(self.states.turns[self.actor])
