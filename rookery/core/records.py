"""What flows: rollouts of T steps of B environments, and the blocks of memory that hold them.

Shapes: T rollout steps, B environments of one actor, S slots in a block.

A **block** is one set of arrays ``[T, S * B, ...]``; slot ``s`` is the columns ``s*B .. (s+1)*B``.
An actor writes its rollout straight into the columns of its slot, and the learner reads the whole
block as its batch: no array is copied or joined on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rookery.core.spec import Array, Arrays, ArraySpec

_FLOAT = np.dtype(np.float32)
_BOOL = np.dtype(np.bool_)
_GROUPS = ("obs", "state", "info")


@dataclass(slots=True)
class Rollout:
    """T steps of B environments under one version of the policy.

    Row ``t`` holds the observation acted on, the action, and what followed. ``obs``, ``reset`` and
    ``value`` have one row more: what was seen after the last step, for bootstrapping.
    """

    obs: Arrays
    """Leaves ``[T+1, B, ...]``."""
    reset: Array
    """``[T+1, B]`` the observation of this row begins an episode (recurrent state starts anew)."""
    action: Array
    """``[T, B, ...]`` as the policy chose it, before it is fitted to the environment's bounds."""
    log_prob: Array
    """``[T, B]`` of ``action`` under the policy that acted."""
    value: Array
    """``[T+1, B]`` estimate of the policy that acted."""
    reward: Array
    """``[T, B]`` raw reward."""
    terminated: Array
    """``[T, B]`` the episode ended here by the task's own rules: nothing follows."""
    truncated: Array
    """``[T, B]`` the episode was cut here: it would have gone on from ``final_value``."""
    mask: Array
    """``[T, B]`` False where the backend spent the step on a reset and ignored the action."""
    final_value: Array
    """``[T, B]`` value of the last observation of a truncated episode, else 0."""
    episode_return: Array
    """``[T, B]`` raw return of the episode that ended in this row, else NaN."""
    episode_length: Array
    """``[T, B]`` steps of the episode that ended in this row, else 0."""
    version: Array
    """``[B]`` of the policy that acted: how many updates the learner had made by then."""
    state: Arrays
    """Leaves ``[B, ...]``: the recurrent state before row 0."""
    info: Arrays
    """Leaves ``[T, B]``: values copied from ``info`` where an episode ended, else NaN."""

    def flat(self) -> Arrays:
        """All arrays by name, groups as ``obs/<leaf>``."""
        out: Arrays = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _GROUPS:
                out.update({f"{field.name}/{leaf}": array for leaf, array in value.items()})
            else:
                out[field.name] = value
        return out

    @classmethod
    def from_flat(cls, arrays: Mapping[str, Array]) -> Rollout:
        """The inverse of :meth:`flat`."""
        kwargs: dict[str, Any] = {group: {} for group in _GROUPS}
        for name, array in arrays.items():
            group, _, leaf = name.partition("/")
            if leaf:
                kwargs[group][leaf] = array
            else:
                kwargs[name] = array
        return cls(**kwargs)

    def columns(self, start: int, stop: int) -> Rollout:
        """A view of some environments of this rollout."""
        return Rollout.from_flat(
            {
                name: array[start:stop] if _once(name) else array[:, start:stop]
                for name, array in self.flat().items()
            }
        )

    @property
    def num_steps(self) -> int:
        """Steps the environments really took: T * B less the rows spent on resets."""
        return int(np.count_nonzero(self.mask))


def _once(name: str) -> bool:
    """Whether there is one row of it for each environment, and not for each step."""
    return name == "version" or name.startswith("state/")


def rollout_spec(
    *,
    num_steps: int,
    num_envs: int,
    obs: Mapping[str, ArraySpec],
    action: ArraySpec,
    state: Mapping[str, ArraySpec],
    info_keys: tuple[str, ...] = (),
) -> dict[str, ArraySpec]:
    """Names, shapes and dtypes of a rollout of ``num_steps`` steps of ``num_envs`` environments."""
    steps, envs = num_steps, num_envs

    def rows(extra: int, dtype: np.dtype[Any]) -> ArraySpec:
        return ArraySpec((steps + extra, envs), dtype)

    spec = {f"obs/{leaf}": array.with_axes(steps + 1, envs) for leaf, array in obs.items()}
    spec |= {f"state/{leaf}": array.with_axes(envs) for leaf, array in state.items()}
    spec |= {f"info/{key}": rows(0, _FLOAT) for key in info_keys}
    return spec | {
        "reset": rows(1, _BOOL),
        "action": action.with_axes(steps, envs),
        "log_prob": rows(0, _FLOAT),
        "value": rows(1, _FLOAT),
        "reward": ArraySpec((steps, envs), _FLOAT, finite=True),
        "terminated": rows(0, _BOOL),
        "truncated": rows(0, _BOOL),
        "mask": rows(0, _BOOL),
        "final_value": rows(0, _FLOAT),
        "episode_return": rows(0, _FLOAT),
        "episode_length": rows(0, np.dtype(np.int32)),
        "version": ArraySpec((envs,), np.dtype(np.int64)),
    }
