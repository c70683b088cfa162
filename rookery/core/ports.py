"""The doors between roles. Roles hold ports; engines decide what carries them.

Verbs are fixed: an actor *puts* rollouts, a learner *samples* them and *publishes* weights, an
actor *gets* weights. Nothing here blocks: where something is not there yet, ``can_*`` says so and
``wait`` sleeps until it might be, so that one thread can run every role in turn.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rookery.core.records import Rollout
from rookery.core.tensors import Tensors


@runtime_checkable
class ExperienceSink(Protocol):
    """Where an actor puts its rollouts::

    while running:
        if not sink.can_put():
            sink.wait(timeout_secs)
            continue
        rollout = sink.reserve()      # memory to fill in place
        ...
        sink.put(rollout)             # it is the learner's now
    """

    def can_put(self) -> bool:
        """Whether there is room for one more rollout now."""
        ...

    def reserve(self) -> Rollout:
        """Memory for the next rollout; call only when :meth:`can_put`."""
        ...

    def put(self, rollout: Rollout) -> None:
        """Hand over the reserved rollout."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until there may be room, at most ``timeout_secs``."""
        ...


@runtime_checkable
class ExperienceSource(Protocol):
    """Where a learner takes rollouts from::

    while running:
        if not source.can_sample():
            source.wait(timeout_secs)
            continue
        batch = source.sample()       # all rollouts of this round, [T, all environments]
        ... learn, publish ...
        source.release()              # the memory goes back to the actors
    """

    def can_sample(self) -> bool:
        """Whether a whole batch is there."""
        ...

    def sample(self) -> Rollout:
        """The batch, to be read until :meth:`release`."""
        ...

    def release(self) -> None:
        """Give the batch's memory back to the actors."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until more may be there, at most ``timeout_secs``."""
        ...


@runtime_checkable
class ParamSource(Protocol):
    """Where weights come from."""

    def get(self, newer_than: int) -> tuple[int, Tensors] | None:
        """Version and weights if newer than what the caller has. Copy before the next call."""
        ...


@runtime_checkable
class ParamSink(Protocol):
    """Where weights are published."""

    def publish(self, version: int, params: Tensors) -> None:
        """Make ``params`` what :meth:`ParamSource.get` gives from now on."""
        ...
