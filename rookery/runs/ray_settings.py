"""Settings of engine ``ray``: which cluster, and what a run asks of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rookery.core.errors import UserError

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]

_RANGE = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Which Ray cluster carries the run, and what it asks of it: a head, and hosts that act."""

    address: str | None = None
    """HOST:PORT of a cluster, or auto: the one that runs here; null: RAY_ADDRESS, else a Ray of the
    run's own on this machine."""
    strategy: Strategy = "PACK"
    """How head and hosts are placed: PACK on few nodes, SPREAD over many; STRICT_: or not at all.
    """
    min_actors: int | None = None
    """Training begins as soon as there is room for so many of those that act, and the others come
    and go with the cluster; null: all. `--actors 2:8` sets it to 2."""
    head_actors: int | None = None
    """How many act beside the learner; null: none where hosts can do all of it, else 1."""
    head_cpus: float | None = None
    """CPUs of the head; null: 1, or as many as act there."""
    head_gpus: float = 0.0
    """GPUs of the head, for --device cuda."""
    head_resources: dict[str, float] = field(default_factory=dict)
    """Custom resources of the head, as {"node:10.0.0.1": 0.001} to keep it there."""
    head_port: int | None = None
    """At which the hosts find it; null: any that is free there."""
    host_actors: int | None = None
    """How many act on each host; null: as many as the smallest node has CPUs."""
    host_cpus: float | None = None
    """CPUs of each host; null: one for each that acts there."""
    host_gpus: float = 0.0
    """GPUs of each host."""
    host_resources: dict[str, float] = field(default_factory=dict)
    """Custom resources of each host."""
    wait_secs: float = 300.0
    """How long to wait for room on the cluster, at the start and when the head was lost."""

    def __post_init__(self) -> None:
        for name, least in (("min_actors", 1), ("head_actors", 0), ("host_actors", 1)):
            given = getattr(self, name)
            if given is not None and given < least:
                raise UserError(f"ray.{name}: must be at least {least}, got {given}")
        for name in ("head_cpus", "head_gpus", "host_cpus", "host_gpus"):
            if (getattr(self, name) or 0.0) < 0:
                raise UserError(f"ray.{name}: must not be negative, got {getattr(self, name):g}")
        if self.head_port is not None and not 0 < self.head_port < 65536:
            raise UserError(f"ray.head_port: must be between 1 and 65535, got {self.head_port}")
        for name in ("head_resources", "host_resources"):
            self._check_resources(name)
        if self.wait_secs <= 0:
            raise UserError(f"ray.wait_secs: must be positive, got {self.wait_secs:g}")
        if (self.address or "").startswith("ray://"):
            raise UserError(
                f"ray.address: {self.address} is Ray Client's, which carries no runs; submit a job "
                "with `ray job submit`, or give the HOST:PORT of the cluster on one of its nodes"
            )

    def _check_resources(self, setting: str) -> None:
        """Refuse what Ray counts by other settings, and amounts of nothing."""
        given: Mapping[str, float] = getattr(self, setting)
        for name, amount in given.items():
            if name in ("CPU", "GPU", "memory"):
                instead = f"; set ray.{setting[:4]}_{name.lower()}s" if name != "memory" else ""
                raise UserError(f"ray.{setting}: {name} is no custom resource{instead}")
            if amount <= 0:
                raise UserError(f"ray.{setting}: {name} must be positive, got {amount:g}")


def range_of(flag: str, text: str) -> tuple[int, int] | None:
    """The two numbers of ``MIN:MAX``; None if ``text`` is no such thing."""
    if ":" not in text:
        return None
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{flag}: '{text}' is no range; write MIN:MAX, as 2:8")
    least, most = int(found[1]), int(found[2])
    if not 1 <= least <= most:
        raise UserError(f"{flag}: {text} must begin with at least 1, and not with more than it has")
    return least, most
