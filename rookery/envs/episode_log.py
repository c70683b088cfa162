"""The actions of every running episode, so that a stopped run can play them again.

An environment cannot be saved, but an episode can be repeated: its seed and its actions lead to the
same state. The saved form does not depend on how environments were spread over processes.

Shapes: B environments, N the longest running episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rookery.core.errors import UserError
from rookery.core.spec import Array, Arrays, ArraySpec

MAX_REPLAY_STEPS = 100_000
"""Longer episodes are not kept; a resumed run starts a new episode in their place."""

FORMAT = "episodes"
_FIRST_CAPACITY = 64


class EpisodeLog:
    """Episode number, seed and actions so far, for each of B environments."""

    def __init__(self, num_envs: int, action: ArraySpec) -> None:
        self.episode = np.full(num_envs, -1, np.int64)
        self.seed = np.zeros(num_envs, np.int64)
        self.length = np.zeros(num_envs, np.int64)
        """Actions kept; -1 where the episode grew too long."""
        self._rows = np.arange(num_envs)
        self._longest = 0
        self._some_dropped = False
        capacity = min(_FIRST_CAPACITY, MAX_REPLAY_STEPS)
        self._actions = np.zeros((num_envs, capacity, *action.shape), action.dtype)

    def begin(self, row: int, episode: int, seed: int) -> None:
        """A new episode starts in ``row``."""
        self.episode[row] = episode
        self.seed[row] = seed
        self.length[row] = 0

    def append(self, actions: Array) -> None:
        """Every environment is about to take its row of ``actions`` ``[B, ...]``."""
        # An upper bound that needs no reduction on most steps: it only grows by one a step.
        if self._longest == self._actions.shape[1]:
            self._make_room()
        if self._some_dropped:
            kept = self.length >= 0
            self._some_dropped = not kept.all()
            self._actions[self._rows[kept], self.length[kept]] = actions[kept]
            self.length[kept] += 1
        else:
            self._actions[self._rows, self.length] = actions
            self.length += 1
        self._longest += 1

    def _make_room(self) -> None:
        self.length[self.length >= MAX_REPLAY_STEPS] = -1
        self._some_dropped = bool((self.length < 0).any())
        self._longest = int(self.length.max(initial=0))
        if self._longest == self._actions.shape[1]:
            self._grow()

    def _grow(self) -> None:
        capacity = self._actions.shape[1]
        grown = np.zeros(
            (len(self.length), min(2 * capacity, MAX_REPLAY_STEPS), *self._actions.shape[2:]),
            self._actions.dtype,
        )
        grown[:, :capacity] = self._actions
        self._actions = grown

    def restore(self, row: int, actions: Array) -> None:
        """The episode begun in ``row`` has already taken ``actions`` ``[n, ...]``."""
        while len(actions) > self._actions.shape[1]:
            self._grow()
        self._actions[row, : len(actions)] = actions
        self.length[row] = len(actions)
        self._longest = max(self._longest, len(actions))

    def state(self) -> Arrays:
        """The log as arrays."""
        longest = int(self.length.max(initial=0))
        actions = self._actions[:, :longest].copy()
        actions[np.arange(longest) >= self.length[:, None]] = 0  # left from earlier episodes
        return {
            "actions": actions,
            "length": self.length.copy(),
            "episode": self.episode.copy(),
            "seed": self.seed.copy(),
        }


def join_states(states: list[Arrays]) -> Arrays:
    """The saved states of several processes as that of one, in their order."""
    longest = max(state["actions"].shape[1] for state in states)
    padded = [state | {"actions": _pad(state["actions"], longest)} for state in states]
    return {name: np.concatenate([state[name] for state in padded]) for name in padded[0]}


def _pad(actions: Array, length: int) -> Array:
    shape = (len(actions), length, *actions.shape[2:])
    padded = np.zeros(shape, actions.dtype)
    padded[:, : actions.shape[1]] = actions
    return padded


def split_state(state: Arrays, start: int, stop: int) -> Arrays:
    """The part of a saved state that belongs to environments ``start .. stop - 1``."""
    return {name: array[start:stop] for name, array in state.items()}


def state_header(num_envs: int) -> dict[str, Any]:
    """The JSON data that goes with a saved log."""
    return {"format": FORMAT, "num_envs": num_envs}


def require_header(data: dict[str, Any], num_envs: int, name: str) -> None:
    """Refuse a state that another backend or another number of environments saved."""
    if data.get("format") != FORMAT or data.get("num_envs") != num_envs:
        raise UserError(
            f"the saved state of {name} is of {data.get('num_envs')} environments of the backend "
            f"format '{data.get('format')}', not {num_envs} of '{FORMAT}'; resume with the "
            "env.backend and env.num_envs of the saved run"
        )
