"""The one transition format every vector backend is adapted to.

The loop that drives a vector environment::

    obs = envs.reset()
    while True:
        out = envs.step(actions)                 # actions [B, ...], already within the action space
        # out.reward, out.terminated, out.truncated belong to the observation acted on
        # out.final_obs holds the last observation of every episode that ended in this step
        obs = out.obs                            # act on this next; out.reset says where it begins
                                                 # an episode

Shapes: B environments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rookery.core.spec import Array, Arrays, LeafSpec, LeafSpecs


@dataclass(slots=True)
class StepResult:
    """What one step of B environments gave. Arrays may be reused by the next step: copy to keep."""

    obs: Arrays
    """Leaves ``[B, ...]``: what to act on next, after any reset."""
    reward: Array
    """``[B]`` float64, raw."""
    terminated: Array
    """``[B]`` bool."""
    truncated: Array
    """``[B]`` bool; never set together with ``terminated`` (termination wins)."""
    valid: Array
    """``[B]`` bool: False where the backend spent this step on a reset and ignored the action."""
    reset: Array
    """``[B]`` bool: ``obs`` begins an episode."""
    final_obs: Arrays | None = None
    """Leaves ``[B, ...]``, meaningful in rows that ended in this step; None when none did."""
    info: Arrays = field(default_factory=dict)
    """``[B]`` float values of the asked-for info keys, NaN where absent."""
    whole_ended: Array | None = None
    """``[B]`` bool: where the whole episode ended, if some of what ended for the learner did not
    (a lost life is ``terminated``, and the game goes on); None: wherever one ended."""

    def episode_ended(self) -> Array:
        """``[B]`` bool: where an episode ended whose return and length are to be recorded."""
        if self.whole_ended is not None:
            return self.whole_ended
        ended: Array = self.terminated | self.truncated
        return ended


class VectorEnv(Protocol):
    """B environments stepped together. Backends: native NumPy, serial, worker processes."""

    num_envs: int
    lost_episodes: Array
    """``[B]`` rows whose episode the last :meth:`load_state_dict` could not continue."""
    obs_leaves: LeafSpecs
    action_leaf: LeafSpec

    def reset(self) -> Arrays:
        """Begin an episode in every environment; observations ``[B, ...]``."""
        ...

    def step(self, actions: Array) -> StepResult:
        """Step every environment with ``actions`` ``[B, ...]``."""
        ...

    def state_dict(self) -> tuple[Arrays, dict[str, Any]] | None:
        """Arrays and JSON data that :meth:`load_state_dict` continues from, None if impossible."""
        ...

    def load_state_dict(self, arrays: Arrays, data: dict[str, Any]) -> Arrays:
        """Continue from a saved state; returns the observations to act on next."""
        ...

    def close(self) -> None:
        """Release what the environments hold. Safe to call twice."""
        ...


@runtime_checkable
class BackgroundVectorEnv(VectorEnv, Protocol):
    """Environments that step while the caller does something else; ``step`` is both halves.

    Two vectors take turns, so that one steps while the other gets its actions::

        first.begin_step(act(first_obs))
        while True:
            second.begin_step(act(second_obs))
            first_obs = first.finish_step().obs
            first.begin_step(act(first_obs))
            second_obs = second.finish_step().obs

    Ask ``isinstance(envs, BackgroundVectorEnv)``: only backends that really do so have the methods.
    """

    def begin_step(self, actions: Array) -> None:
        """Let every environment begin its step with ``actions`` ``[B, ...]``."""
        ...

    def finish_step(self) -> StepResult:
        """Wait for the step that :meth:`begin_step` began."""
        ...
