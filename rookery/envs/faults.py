"""What an environment may not do, found on whole batches and told in one line.

Shapes: B environments.
"""

from __future__ import annotations

import math
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from rookery.core.errors import EnvironmentFault
from rookery.core.spec import ACTION_MASK, Array, Arrays, LeafSpec, LeafSpecs
from rookery.envs.spaces import LeafError, choice_offsets

RESTART = "fix the environment or set env.on_env_error=restart"
_NO_CHECK = "fix the environment or set env.check=false to let such values through"
_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = {"site-packages", "dist-packages"}
FIX_SPACE = "fix the environment or the space it declares"
_SMALL = 4096


def one_line(error: BaseException) -> str:
    """``ValueError: the message`` on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def raised(
    name: str, which: str, where: str, error: BaseException, remedy: str = RESTART
) -> EnvironmentFault:
    """The environment's own code raised ``error`` in ``where`` (step or reset)."""
    line = line_of(error)
    at = f" at {line}" if line else ""
    return EnvironmentFault(
        f"environment {name} ({which}) raised {one_line(error)} in {where}{at}; {remedy}"
    )


def line_of(error: BaseException) -> str:
    """``my_env.py:27``, the user's line that ``error`` came from; empty if none is known.

    Of the innermost frames those of installed packages are passed over.
    """
    known = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    places = [(path, line) for path, line in known if path.suffix == ".py"]
    others = [(path, line) for path, line in places if not path.is_relative_to(_PACKAGE)]
    own = [(path, line) for path, line in others if not {*path.parts} & _INSTALLED]
    if not (found := own or others or places):
        return ""
    path, line = found[-1]
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"


def hung(name: str, which: str, where: str, secs: float) -> EnvironmentFault:
    """The environment did not come back from ``where`` in time."""
    return EnvironmentFault(
        f"environment {name} ({which}) did not return from {where} within {secs:g} s; "
        "fix the environment or raise env.step_timeout_secs"
    )


def wrong(
    name: str, which: str, where: str, what: str, remedy: str = _NO_CHECK
) -> EnvironmentFault:
    """The environment returned what it may not."""
    return EnvironmentFault(
        f"environment {name} ({which}) returned a wrong value from {where}: {what}; {remedy}"
    )


def scalar_reward(reward: Any) -> float:
    """``reward`` as a float; LeafError if it is not one number."""
    if isinstance(reward, (int, np.floating, np.integer)):
        return float(reward)
    if np.ndim(reward) != 0 or not isinstance(reward, (int, float, np.generic, np.ndarray)):
        shape = f" of shape {np.shape(reward)}" if np.ndim(reward) else ""
        raise LeafError(f"the reward should be one number, it is a {type(reward).__name__}{shape}")
    return float(reward)


class BatchChecks:
    """Values that whole batches of observations and rewards may not hold."""

    def __init__(self, obs_leaves: LeafSpecs, action: LeafSpec) -> None:
        self._floats = [name for name, leaf in obs_leaves.items() if leaf.dtype.kind == "f"]
        self._choices = {
            name: np.asarray(leaf.sizes) if leaf.shape else leaf.sizes[0]
            for name, leaf in obs_leaves.items()
            if leaf.sizes
        }
        self._masked = ACTION_MASK in obs_leaves
        self._offsets = choice_offsets(action)

    def bad_obs(self, obs: Arrays) -> tuple[int, str] | None:
        """The first row of ``obs`` ``[B, ...]`` that is not allowed, and why."""
        for name in self._floats:
            array = obs[name]
            if not _surely_finite(array):
                row = _first_row(~np.isfinite(array))
                if row is not None:
                    return row, f"'{name}' holds NaN or infinity"
        for name, sizes in self._choices.items():
            row = _first_row((obs[name] < 0) | (obs[name] >= sizes))
            if row is not None:
                value = obs[name][row]
                return row, f"'{name}' is {value} counted from its start, beyond {sizes} choices"
        return None

    def bad_mask(self, obs: Arrays, over: Array | None = None) -> tuple[int, str] | None:
        """The first row whose action mask leaves no choice; rows ``over`` need none."""
        if not self._masked:
            return None
        allowed = np.logical_or.reduceat(obs[ACTION_MASK], self._offsets, axis=1)
        lacking = ~allowed if over is None else ~(allowed | over[:, None])
        row = _first_row(lacking)
        return None if row is None else (row, "its action mask allows no action")

    def bad_reward(self, reward: Array) -> tuple[int, str] | None:
        """The first reward that is not finite."""
        if math.isfinite(reward.dot(reward)):
            return None
        row = _first_row(~np.isfinite(reward))
        return None if row is None else (row, f"the reward is {reward[row]}")


def _surely_finite(array: Array) -> bool:
    """Whether every element is finite, in one cheap pass; False also where a sum overflows."""
    flat = array.ravel("K")
    # Small dot products are the fastest reduction; large ones would wake BLAS threads.
    total = flat.dot(flat) if flat.size <= _SMALL else np.add.reduce(flat)
    return math.isfinite(total)


def _first_row(bad: Array) -> int | None:
    """The first row of ``bad`` ``[B, ...]`` with a True, or None."""
    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
    return int(rows[0]) if len(rows) else None
