"""Workers that compute as one: every member calls the same methods in the same order.

::

    group.sum_(gradient)                    # every member has the sum
    for told in group.gather(episodes):     # the first has what all told, the others nothing
        ...
    go_on = group.first(go_on)              # every member has what the first had
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
from torch import Tensor

from rookery.core.spec import Array

Waiting = Callable[[], AbstractContextManager[None]]


class Group(Protocol):
    """Collectives between ``size`` members, of which this is number ``rank``."""

    rank: int
    size: int
    waiting: Waiting
    """Entered while a member waits for the others, for its heartbeat."""

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace ``tensor`` by the sum over all members: the same bits everywhere."""
        ...

    def gather(self, rows: Array) -> list[Array]:
        """What each member gave (float64 ``[N, C]``, any N), in order, at the first; else []."""
        ...

    def first(self, values: Array) -> Array:
        """What the first member gave (float64 ``[N]``, the same N everywhere)."""
        ...


class Alone:
    """A group of one; or number ``rank`` of those who do not wait for each other."""

    size = 1

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.waiting: Waiting = nullcontext

    def sum_(self, tensor: Tensor) -> Tensor:
        """The sum of one."""
        return tensor

    def gather(self, rows: Array) -> list[Array]:
        """Its own."""
        return [rows]

    def first(self, values: Array) -> Array:
        """Its own."""
        return np.asarray(values)


def share_of(num: int, group: Group) -> slice:
    """Which of ``num`` columns are this member's; they differ by one at most."""
    return slice(num * group.rank // group.size, num * (group.rank + 1) // group.size)
