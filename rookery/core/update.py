"""What one update did and what its experience told: what a learner hands to the session."""

from __future__ import annotations

from dataclasses import dataclass

from rookery.core.spec import Array, Arrays


@dataclass(slots=True)
class Update:
    """What one update did and what its rollouts told."""

    steps: int
    """Environment steps so far in the run."""
    updates: int
    """Updates so far; the version of the weights just published."""
    metrics: dict[str, float]
    """``train/*`` values."""
    returns: Array
    """Raw returns of the episodes that ended."""
    lengths: Array
    """Their lengths in steps."""
    info: Arrays
    """Values copied from ``info`` at their ends."""
