"""A run's room on a Ray cluster: waited for, given to head and hosts, and given back.

::

    room = Room(cluster, asked, config.ray)
    if room.wait(interrupt, say):
        head = room.head(Head, order)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rookery.core.errors import UserError
from rookery.engines.interrupt import Interrupt
from rookery.engines.ray_bundles import Asked, Bundle, in_words, shortage
from rookery.engines.ray_cluster import Cluster
from rookery.runs.ray_settings import RayConfig

POLL_SECS = 0.2
TELL_SECS = 2.0
"""Room that is not there after so long is told of."""
CALLS_AT_ONCE = 32
"""Of one actor: hosts ask the head where it is, while it runs."""


class Room:
    """One placement group for the head and the hosts that are needed; others find room by
    themselves, since a group is placed as a whole or not at all."""

    def __init__(self, cluster: Cluster, asked: Asked, settings: RayConfig) -> None:
        self.cluster, self.asked, self.settings = cluster, asked, settings
        self._group: Any = placement_group(asked.gang(), strategy=settings.strategy)

    def wait(self, interrupt: Interrupt, tell: Callable[[str], None]) -> bool:
        """Until there is room for all that is needed; False if interrupted before."""
        limit, begun, told = self.settings.wait_secs, time.monotonic(), False
        while not self._group.wait(timeout_seconds=POLL_SECS):
            waited = time.monotonic() - begun
            if interrupt.requested:
                return False
            if waited > limit:
                raise UserError(
                    f"engine ray: no room after {waited:.0f} s (ray.wait_secs): "
                    f"{self.missing(self.asked.gang())}; add nodes, or ask for less by --actors, "
                    "ray.head_cpus or ray.host_cpus"
                )
            if not told and waited > TELL_SECS:
                told = True
                missing = self.missing(self.asked.gang())
                tell(f"waiting for room on the Ray cluster, up to {limit:g} s: {missing}")
        return True

    def missing(self, bundles: list[Bundle]) -> str:
        """Why there is no room for ``bundles``."""
        found = shortage(bundles, self.cluster.there(), self.cluster.free())
        if found is not None:
            return found
        each = ", ".join(in_words(bundle) for bundle in bundles)
        return f"no nodes fit what is asked ({each}; ray.strategy {self.settings.strategy})"

    def head(self, kind: type, *given: Any) -> Any:
        """The head's actor."""
        return self._actor(kind, self.asked.head, 0, given)

    def host(self, number: int, kind: type, *given: Any) -> Any:
        """The actor of a host."""
        place = number + 1 if number < self.asked.num_needed else None
        return self._actor(kind, self.asked.hosts[number].bundle, place, given)

    def _actor(self, kind: type, bundle: Bundle, place: int | None, given: Any) -> Any:
        """An actor at its place in the group, or wherever there is room."""
        spread = "SPREAD" if self.settings.strategy.endswith("SPREAD") else "DEFAULT"
        in_group = PlacementGroupSchedulingStrategy(self._group, place or 0)
        options = {
            "num_cpus": bundle.get("CPU", 0.0),
            "num_gpus": bundle.get("GPU", 0.0),
            "resources": {name: num for name, num in bundle.items() if name not in ("CPU", "GPU")},
            "max_restarts": -1,
            "max_concurrency": CALLS_AT_ONCE,
            "scheduling_strategy": spread if place is None else in_group,
        }
        return ray.remote(kind).options(**options).remote(*given)

    def give_back(self) -> None:
        """Nobody needs it any more."""
        with contextlib.suppress(RayError):
            remove_placement_group(self._group)
