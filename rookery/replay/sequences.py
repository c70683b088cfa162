"""Which steps of a stream make a sequence.

A **stream** is the steps of one environment, episode after episode. Its episodes are cut into
windows: window ``k`` learns the steps ``k P .. k P + length - 1`` with ``P = length - overlap``. In
front of them it has ``burn_in`` steps that bring the recurrent state up to date, behind them the
``n_step - 1`` steps and the observation that their targets look ahead to. Steps before the
episode's beginning and after its end are padding: no window crosses either, and each step of an
episode is learned in at least one window::

    burn_in=2 length=4 overlap=2 n_step=2, an episode of 5 steps (f: its last observation)
    window 0    . . [0 1 2 3] 4 f
    window 1    0 1 [2 3 4 .] . .       its observations are 0 1 2 3 4 f . .

Flat n-step transitions are the case ``length=1, overlap=0, burn_in=0``.

Shapes: S streams, T = burn_in + length + n_step - 1 steps of a sequence, which has T + 1 rows: the
last is what was seen after the last step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rookery.core.errors import UserError
from rookery.core.spec import Array, Arrays


@dataclass(frozen=True, kw_only=True)
class SequenceConfig:
    """The shape of a sequence."""

    length: int = 1
    """Steps that are learned."""
    overlap: int = 0
    """Learned steps that a sequence shares with the one before."""
    burn_in: int = 0
    """Steps before the learned ones, which only bring the recurrent state up to date."""
    n_step: int = 1
    """Rewards in a target before the value of what follows."""

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("overlap", 0), ("burn_in", 0), ("n_step", 1)):
            if getattr(self, name) < least:
                raise UserError(f"sequences: {name}={getattr(self, name)} must be at least {least}")
        if self.overlap >= self.length:
            raise UserError(
                f"sequences: overlap={self.overlap} must be less than length={self.length}: "
                "the next sequence would not advance"
            )

    @property
    def period(self) -> int:
        """Steps from the beginning of one window to that of the next."""
        return self.length - self.overlap

    @property
    def num_steps(self) -> int:
        """T: burn-in, learned and looked-ahead steps of a sequence."""
        return self.burn_in + self.length + self.n_step - 1

    @property
    def max_pending(self) -> int:
        """The most windows of one stream that have begun and are not complete."""
        return self.num_steps // self.period + 2

    @property
    def max_put(self) -> int:
        """The most sequences that one step of one stream completes: all that its end cuts short."""
        return self.max_pending


class Windows(NamedTuple):
    """Windows that begin or are complete, one entry each."""

    stream: Array
    """``[W]``"""
    number: Array
    """``[W]`` ``k``, counted from 0 in its episode."""
    padding: Array
    """``[W]`` rows of padding in front: what burn-in would have reached before the episode."""
    num_steps: Array
    """``[W]`` real steps; the real rows are one more. Of a window that begins, not known: 0."""


class SequenceBuilder:
    """The windows of ``num_streams`` streams, in numbers; the steps themselves lie elsewhere.

    For each step of some streams::

        for begun in builder.begin(streams):       # windows whose first real row is this step
            ...                                    # keep the recurrent state before it
        complete = builder.complete(streams)       # windows whose last row is this step
        ...
        complete = builder.end(ended_streams)      # after a step that ended the episode
    """

    def __init__(self, config: SequenceConfig, num_streams: int) -> None:
        self.config = config
        self.num_streams = num_streams
        self._position = np.zeros(num_streams, np.int64)  # steps of the running episode
        self._next = np.zeros(num_streams, np.int64)  # the first window that is not complete

    def position(self, streams: Array) -> Array:
        """``[...]`` how many steps of the running episode each of ``streams`` has had."""
        return self._position[streams]

    def begin(self, streams: Array) -> list[Windows]:
        """The windows whose first real row is the step that ``streams`` ``[B]`` (distinct) take.

        In several parts, in each of which no stream comes twice: at an episode's beginning all
        windows begin whose burn-in would reach back before it.
        """
        config = self.config
        position = self._position[streams]
        reached = position + config.burn_in
        here = (position > 0) & (reached % config.period == 0)
        parts = [self._windows(streams[here], reached[here] // config.period)]
        fresh = streams[position == 0]
        if len(fresh):
            for index in range(config.burn_in // config.period + 1):
                parts.append(self._windows(fresh, np.full(len(fresh), index)))  # noqa: PERF401
        return [part for part in parts if len(part.stream)]

    def complete(self, streams: Array) -> Windows:
        """Count the step of ``streams``, and tell the windows whose last row it is."""
        config = self.config
        position = self._position[streams]
        index = self._next[streams]
        last_row = index * config.period + config.length + config.n_step - 1
        done = streams[position == last_row]
        self._position[streams] += 1
        windows = self._windows(done, self._next[done], ended=False)
        self._next[done] += 1
        return windows

    def end(self, streams: Array) -> Windows:
        """The episodes of ``streams`` are over: tell what is left of them; new ones begin.

        A window that would only learn what the one before it learns is not made.
        """
        config = self.config
        windows = []
        left = streams
        while len(left):
            index, steps = self._next[left], self._position[left]
            learned = np.where(index > 0, (index - 1) * config.period + config.length, 0)
            left, index = left[steps > learned], index[steps > learned]
            windows.append(self._windows(left, index, ended=True))
            self._next[left] += 1
        self.forget(streams)
        return _joined(windows) if windows else self._windows(streams[:0], streams[:0])

    def forget(self, streams: Array) -> None:
        """Drop the running episodes of ``streams``; the next step begins another."""
        self._position[streams] = 0
        self._next[streams] = 0

    def state_dict(self) -> Arrays:
        """Arrays that :meth:`load_state_dict` continues from."""
        return {"position": self._position.copy(), "next_window": self._next.copy()}

    def load_state_dict(self, arrays: Arrays) -> None:
        """Continue where a saved builder was."""
        self._position[:] = arrays["position"]
        self._next[:] = arrays["next_window"]

    def _windows(self, streams: Array, index: Array, ended: bool | None = None) -> Windows:
        config = self.config
        padding = np.maximum(config.burn_in - index * config.period, 0)
        steps = np.zeros(len(streams), np.int64)
        if ended is not None:
            steps = config.num_steps - padding
        if ended:
            first = np.maximum(index * config.period - config.burn_in, 0)
            steps = np.minimum(steps, self._position[streams] - first)
        return Windows(streams, index, padding, steps)


def _joined(windows: list[Windows]) -> Windows:
    return Windows(*(np.concatenate(parts) for parts in zip(*windows, strict=True)))
