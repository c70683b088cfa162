"""What Ray places, and starts again where there is room: the head of a run, and its hosts.

Ray calls ``run`` of each once more in its next life::

    head = ray.remote(Head).options(max_restarts=-1, max_concurrency=16).remote(order)
    done = head.run.options(max_task_retries=-1).remote()
    life, events, upto = ray.get(head.hear.remote(life, upto))

Torch is imported only when the fork server does so too, at the same time.
"""

from __future__ import annotations

import logging
import secrets
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rookery.carriers.tokens import FILE_NAME, read_token
from rookery.core.errors import RunFailed, UserError
from rookery.engines.fork_server import ForkServer
from rookery.engines.interrupt import Interrupt, Stop
from rookery.runs.head_address import read_head_address

HOSTS = "hosts"
"""Of the run directory: logs of hosts, and by what nodes know that they see it."""
HEAR_SECS = 2.0
"""How long a call to hear what happens waits for something."""
MOST_EVENTS = 50_000
"""That nobody has heard; the oldest are forgotten."""

Order = dict[str, Any]
Result = dict[str, Any]
Event = tuple[str, dict[str, Any]]


class Events:
    """What has happened, until somebody has heard it."""

    def __init__(self) -> None:
        self.life = secrets.token_hex(8)
        self._events: list[Event] = []
        self._first = 0
        """Number of the oldest event here."""
        self._changed = threading.Condition()

    def tell(self, kind: str, **content: Any) -> None:
        """One more."""
        with self._changed:
            self._events.append((kind, content))
            spare = max(len(self._events) - MOST_EVENTS, 0)
            self._first += spare
            del self._events[:spare]
            self._changed.notify_all()

    def hear(self, life: str, upto: int, secs: float) -> tuple[str, list[Event], int]:
        """What came after the first ``upto`` of ``life``, waited for, and how many that makes."""
        upto = upto if life == self.life else 0
        with self._changed:
            heard = min(max(upto - self._first, 0), len(self._events))
            del self._events[:heard]
            self._first += heard
            self._changed.wait_for(lambda: bool(self._events), secs)
            return self.life, list(self._events), self._first + len(self._events)


class _Member:
    """What head and hosts have in common."""

    def __init__(self, order: Order, name: str) -> None:
        self.order, self.name = order, name
        self.interrupt = Interrupt(quiet=True)

    def stop(self, state: Any, reason: str) -> None:
        """End it before it is over."""
        self.interrupt.ask(Stop(state, reason))

    def _result(self, work: Callable[[ForkServer], Result]) -> Result:
        """What ``work`` gives, or what went wrong, as plain data."""
        try:
            with ForkServer() as server:
                _check_versions(self.order)
                return work(server)
        except UserError as error:
            return {"error": str(error), "exit_code": error.exit_code}
        except Exception as error:
            logging.getLogger(__name__).error("%s", traceback.format_exc())
            text = f"{self.name}: {type(error).__name__}: {error}"
            return {"error": text, "exit_code": RunFailed.exit_code}


def _check_versions(order: Order) -> None:
    from rookery.engines.ray_cluster import node_name
    from rookery.runs.versions import check_versions, versions_here

    check_versions(f"node {node_name()}", versions_here(), order["driver"], order["versions"])


class Head(_Member):
    """The head: engine ``local``, with a gateway where there are hosts."""

    def __init__(self, order: Order) -> None:
        super().__init__(order, "head")
        self.events = Events()

    def run(self) -> Result:
        """Carry the run to its end, from its newest checkpoint if this is not its first life."""

        def carried(server: ForkServer) -> Result:
            from rookery.engines.ray_head import carry

            return carry(self.order, self.events.tell, self.interrupt, server)

        return self._result(carried)

    def hear(self, life: str, upto: int) -> tuple[str, list[Event], int]:
        """See :meth:`Events.hear`."""
        return self.events.hear(life, upto, HEAR_SECS)

    def where(self) -> tuple[str, str, str | None] | None:
        """Address, token and fingerprint for hosts, once it listens."""
        run = Path(self.order["run"])
        found = read_head_address(run)
        if found is None:
            return None
        return found.address, read_token(run / FILE_NAME), found.fingerprint


class Host(_Member):
    """A host: joins the head, which Ray finds for it wherever it is."""

    def __init__(self, order: Order, number: int, num_actors: int) -> None:
        super().__init__(order, f"host-{number}")
        self.num_actors = num_actors

    def run(self, head: Any) -> Result:
        """Take part in the run of ``head`` until it is over."""

        def took_part(server: ForkServer) -> Result:
            from rookery.engines.ray_host import join

            return join(self.order, self.name, head, self.num_actors, self.interrupt, server)

        return self._result(took_part)
