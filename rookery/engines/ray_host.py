"""A host of a run on Ray: what ``rookery join`` does, with Ray to find the head."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from rookery.core.errors import UserError
from rookery.core.hosts import Probe, Unreachable
from rookery.engines.fork_server import ForkServer
from rookery.engines.host import Joining, Link, Way, take_part
from rookery.engines.interrupt import Interrupt
from rookery.engines.ray_actors import HOSTS
from rookery.engines.ray_cluster import node_name
from rookery.engines.ray_logs import logged
from rookery.runs.shared_probe import seen_here

DIAL_SECS = 5.0
GIVE_UP_SECS = 86_400.0
"""Who starts hosts also ends them."""
_LOG = logging.getLogger(__name__)


def join(
    order: dict[str, Any],
    name: str,
    head: Any,
    num_actors: int,
    interrupt: Interrupt,
    server: ForkServer,
) -> dict[str, Any]:
    """Take part until the run is over; the exit code that it would be of ``rookery join``."""
    logs = _directory(order, name)
    with logged(logs / "logs" / "host.log"):
        _LOG.info("%d act on node %s", num_actors, node_name())
        joining = Joining(
            way=WayByRay(head),
            num_actors=num_actors,
            give_up_secs=GIVE_UP_SECS,
            logs=logs,
            say=_LOG.info,
            interrupt=interrupt,
        )
        return {"code": take_part(joining, server)}


def _directory(order: dict[str, Any], name: str) -> Path:
    """In the run directory, where this node sees it; else where this process is."""
    run = Path(order["run"])
    own = f"{run.name}-{name}"
    try:
        return seen_here(Probe(**order["probe"]), run / HOSTS) / own
    except UserError:
        return Path("runs").absolute() / own


class WayByRay:
    """The way to the head, asked of Ray for every try: a head that is resumed may be elsewhere."""

    def __init__(self, head: Any) -> None:
        self.head = head
        self.address = ""

    def dial(self) -> Link:
        """A new connection."""
        try:
            found = ray.get(self.head.where.remote(), timeout=DIAL_SECS)
        except (RayError, GetTimeoutError) as error:
            raise Unreachable("the head is not there") from error
        if found is None:
            raise Unreachable("the head does not listen yet")
        self.address, token, fingerprint = found
        return Way(self.address, token, fingerprint).dial()
