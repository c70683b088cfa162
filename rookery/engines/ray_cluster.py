"""The Ray cluster of a run: the one that is there, or one that is started.

::

    with connected(config.ray, lambda: 9.0) as cluster:
        cluster.node_cpus()

Ray is imported when this module is: by nobody who does not use it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any

from rookery.core.address import parse_address
from rookery.core.errors import UserError
from rookery.engines.interrupt import held
from rookery.engines.ray_bundles import Bundle
from rookery.runs.ray_settings import RayConfig

try:
    import ray
    from ray.exceptions import RayError
except ImportError as error:
    raise UserError(
        f'engine ray: Ray is not installed ({error}); pip install "rookery[ray]" brings it'
    ) from error

ADDRESS = "RAY_ADDRESS"
ANSWER_SECS = 10.0
"""How long a cluster may take to answer."""


def address_of(settings: RayConfig) -> str | None:
    """The cluster that is meant; None: nobody's, one is started."""
    return settings.address or os.environ.get(ADDRESS) or None


def check_answers(settings: RayConfig) -> None:
    """Refuse the address of a cluster that nobody answers at."""
    address = address_of(settings)
    if ray.is_initialized() or address in (None, "auto", "local"):
        return
    host, port = parse_address(address)
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECS).close()
    except OSError as error:
        raise UserError(
            f"engine ray: nobody answers at {address} ({error.strerror or error}); check --address "
            f"and {ADDRESS}, or leave both out to start a Ray here"
        ) from error


@contextlib.contextmanager
def connected(settings: RayConfig, own_cpus: Callable[[], float]) -> Iterator[Cluster]:
    """The cluster that this program is connected to, or the one of ``settings``, or one of this
    machine that ends with the block, with ``own_cpus``."""
    if ray.is_initialized():
        yield Cluster()
        return
    check_answers(settings)
    with _own_signals(), _quiet():
        _connect(address_of(settings), own_cpus)
        try:
            yield Cluster()
        finally:
            ray.shutdown()


def _connect(address: str | None, own_cpus: Callable[[], float]) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address in (None, "local"):
            cpus = max(own_cpus(), len(os.sched_getaffinity(0)))
            with held():  # what is sent to the whole group ends the run, not Ray under it
                ray.init("local", num_cpus=ceil(cpus), include_dashboard=False, **quiet)
        else:
            ray.init(address, **quiet)
    except (RayError, RuntimeError, ConnectionError, OSError, ValueError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        where = f"the cluster at {address}" if address is not None else "a Ray of this machine"
        raise UserError(f"engine ray: {where} cannot be used: {why}") from error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Ray has a handler of its own for SIGTERM; afterwards there is the one of before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray prints who died to standard output, amid the live view; the run says it too."""
    from ray._private import worker

    before = vars(worker).get("_worker_logs_enabled", True)
    vars(worker)["_worker_logs_enabled"] = False
    try:
        yield
    finally:
        vars(worker)["_worker_logs_enabled"] = before


class Cluster:
    """What is there."""

    def node_cpus(self) -> list[float]:
        """CPUs of each node that lives."""
        return [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]

    def there(self) -> Bundle:
        """All resources."""
        return dict(ray.cluster_resources())

    def free(self) -> Bundle:
        """Those that nobody has."""
        return dict(ray.available_resources())


def node_name() -> str:
    """This node, for people."""
    return f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"
