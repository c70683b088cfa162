"""What replay takes and gives: one step of some environments, and sequences of steps.

Shapes: B environments, N sequences of T steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rookery.core.spec import Array, Arrays, ArraySpec


@dataclass(slots=True, kw_only=True)
class Steps:
    """One step of each of B environments, as an actor saw it."""

    stream: Array
    """``[B]`` which environment of all actors, distinct."""
    obs: Arrays
    """Leaves ``[B, ...]``: what was acted on."""
    action: Array
    """``[B, ...]``"""
    reward: Array
    """``[B]`` what is learned from."""
    terminated: Array
    """``[B]`` the episode ended here by the task's own rules."""
    truncated: Array
    """``[B]`` the episode was cut here."""
    final_obs: Arrays | None = None
    """Leaves ``[B, ...]``, meaningful where the episode ended; None when none did."""
    valid: Array | None = None
    """``[B]`` False where the backend spent the step on a reset; None says all are real."""
    state: Arrays = field(default_factory=dict)
    """Leaves ``[B, ...]``: the recurrent state before the step."""
    extra: Arrays = field(default_factory=dict)
    """Leaves ``[B, ...]`` of the caller's own: the policy's version, its values, a bandit's arm."""
    final_extra: Arrays | None = None
    """The same of ``final_obs``; None stores zeros."""


@dataclass(slots=True, kw_only=True)
class Sequences:
    """N sequences of T steps, each within one episode.

    ``obs``, ``reset`` and ``extra`` have one row more: what was seen after the last step, which is
    the episode's own last observation where it ended. Rows without a step are zeros.
    """

    obs: Arrays
    """Leaves ``[T+1, N, ...]``."""
    reset: Array
    """``[T+1, N]`` the observation of this row begins an episode (recurrent state starts anew)."""
    action: Array
    """``[T, N, ...]``"""
    reward: Array
    """``[T, N]``"""
    terminated: Array
    """``[T, N]`` the episode ended here by the task's own rules: nothing follows."""
    truncated: Array
    """``[T, N]`` the episode was cut here: the next row is its last observation."""
    mask: Array
    """``[T, N]`` this step was taken; False for padding before and after the episode."""
    state: Arrays
    """Leaves ``[N, ...]``: the recurrent state before the first real row."""
    extra: Arrays
    """Leaves ``[T+1, N, ...]``."""


class Sample(NamedTuple):
    """Sequences that were sampled."""

    keys: Array
    """``[N]`` by which replay knows them."""
    probability: Array
    """``[N]`` float64: the odds with which each was chosen."""
    sequences: Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """What one step of one environment looks like."""

    obs: Mapping[str, ArraySpec]
    action: ArraySpec
    state: Mapping[str, ArraySpec] = field(default_factory=dict)
    extra: Mapping[str, ArraySpec] = field(default_factory=dict)

    def sequences(self, num_steps: int, num: int) -> Sequences:
        """Memory for ``num`` sequences of ``num_steps`` steps."""

        def rows(spec: ArraySpec, extra: int = 0) -> Array:
            return np.zeros((num_steps + extra, num, *spec.shape), spec.dtype)

        flag = ArraySpec((), np.dtype(np.bool_))
        return Sequences(
            obs={name: rows(spec, 1) for name, spec in self.obs.items()},
            reset=rows(flag, 1),
            action=rows(self.action),
            reward=rows(ArraySpec((), np.dtype(np.float32))),
            terminated=rows(flag),
            truncated=rows(flag),
            mask=rows(flag),
            state={
                name: np.zeros((num, *spec.shape), spec.dtype) for name, spec in self.state.items()
            },
            extra={name: rows(spec, 1) for name, spec in self.extra.items()},
        )
