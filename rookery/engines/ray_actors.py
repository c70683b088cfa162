"""What Ray places, and starts again where there is room: the head of a run, and its hosts.

Both run what they run everywhere else: :func:`rookery.engines.local.run` and
:func:`rookery.engines.host.take_part`. Ray calls ``run`` of each once more in its next life::

    head = ray.remote(Head).options(max_restarts=-1, max_concurrency=16).remote(order)
    done = head.run.options(max_task_retries=-1).remote()
    life, events, upto = ray.get(head.hear.remote(life, upto))
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from rookery.carriers.tokens import FILE_NAME, read_token
from rookery.core.address import write_address
from rookery.core.errors import RunFailed, UserError
from rookery.core.hosts import Probe, Unreachable
from rookery.core.signature import Signature
from rookery.engines import local
from rookery.engines.engine import Job
from rookery.engines.fork_server import ForkServer
from rookery.engines.host import Joining, Link, Way, take_part
from rookery.engines.interrupt import Interrupt, Stop
from rookery.engines.ray_cluster import node_name
from rookery.programs.plan import Plan
from rookery.recipes.on_nodes import at_head_of, over_hosts
from rookery.recipes.settings import config_from_tree
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.runs.find import load_checkpoint
from rookery.runs.head_address import read_head_address, remove_head_address
from rookery.runs.session import Callbacks
from rookery.runs.shared_probe import seen_here
from rookery.runs.stage import Stage
from rookery.runs.start import starting_weights
from rookery.runs.versions import check_versions, versions_here

HEAR_SECS = 2.0
"""How long a call to hear what happens waits for something."""
MOST_EVENTS = 50_000
"""That nobody has heard; the oldest are forgotten."""
DIAL_SECS = 5.0
GIVE_UP_SECS = 86_400.0
"""Who starts hosts also ends them."""

Order = dict[str, Any]
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
        self.run_path = Path(order["run"])
        self.interrupt = Interrupt(quiet=True)

    def stop(self, state: Any, reason: str) -> None:
        """End it before it is over."""
        self.interrupt.ask(Stop(state, reason))

    def _result(self, work: Callable[[], dict[str, Any]], told: logging.Handler) -> dict[str, Any]:
        """What ``work`` gives, or what went wrong, as plain data."""
        log = logging.getLogger("rookery")
        log.addHandler(told)
        try:
            driver, versions = self.order["driver"], self.order["versions"]
            check_versions(f"node {node_name()}", versions_here(), driver, versions)
            return work()
        except UserError as error:
            log.error("%s", error)
            return {"error": str(error), "exit_code": error.exit_code}
        except Exception as error:
            log.error("%s", traceback.format_exc())
            text = f"{self.name} on {node_name()}: {type(error).__name__}: {error}"
            return {"error": text, "exit_code": RunFailed.exit_code}
        finally:
            log.removeHandler(told)
            told.close()

    def _shared(self) -> Path:
        """The run directory, if this node sees it."""
        return seen_here(Probe(**self.order["probe"]), self.run_path)

    def _log(self, directory: Path) -> logging.Handler:
        """Into a file of its own."""
        directory.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(directory / f"ray-{self.name}.log", delay=True)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        return handler


class Head(_Member):
    """The head: engine ``local``, with a gateway where there are hosts."""

    def __init__(self, order: Order) -> None:
        super().__init__(order, "head")
        self.events = Events()

    def run(self) -> dict[str, Any]:
        """Carry the run to its end, from its newest checkpoint if this is not its first life."""
        return self._result(self._run, _Told(self.events))

    def _run(self) -> dict[str, Any]:
        try:
            self._shared()
        except UserError as error:
            address = ray.util.get_node_ip_address()
            raise UserError(
                f"node {node_name()} does not see {self.run_path}, which {self.order['driver']} "
                "has: put --run on storage that all nodes share, or keep the head where it is, as "
                f'by --ray.head_resources \'{{"node:{address}": 0.001}}\' with that node\'s address'
            ) from error
        with contextlib.closing(self._log(self.run_path / "logs")) as file:
            logging.getLogger("rookery").addHandler(file)
            try:
                return self._carry()
            finally:
                logging.getLogger("rookery").removeHandler(file)

    def _carry(self) -> dict[str, Any]:
        order, run = self.order, RunDirectory(self.run_path)
        remove_head_address(run.path)  # of a head that was killed
        resume = self._newest(run)
        self.events.tell("begins", node=node_name(), steps=resume.steps if resume else None)
        config = _head_config(config_from_tree(order["config"], "the driver's settings"))
        plan = Plan.of(config, Signature.from_json(order["signature"]))
        plan.device()
        starts = order["init_from"] if resume is None else None
        job = Job(
            plan,
            run,
            self._callbacks(),
            resume=resume,
            init_from=starting_weights(Path(starts)) if starts is not None else None,
            interrupt=self.interrupt,
        )
        finish = local.run(job)
        return asdict(finish)

    def _newest(self, run: RunDirectory) -> Checkpoint | None:
        """Where to begin: the newest checkpoint of this session, else the one it is to go on from.
        """
        if local.newest_name(run) != self.order["latest_before"]:
            return CheckpointStore(run.checkpoints).load("latest")
        resume = self.order["resume"]
        return load_checkpoint(Path(resume)) if resume is not None else None

    def _callbacks(self) -> Callbacks:
        tell, wanted = self.events.tell, self.order["wanted"]
        as_record = {
            name: (lambda record, kind=name: tell(kind, record=record)) if name in wanted else None
            for name in ("update", "episode", "evaluation")
        }

        def stage(now: Stage | None) -> None:
            tell("stage", stage=asdict(now) if now is not None else None)

        return Callbacks(
            as_record["update"],
            as_record["episode"],
            as_record["evaluation"],
            [lambda record: tell("record", record=record)],
            on_stage=stage,
            on_steps=lambda steps: tell("steps", steps=steps),
            on_notice=lambda text: tell("notice", text=text),
        )

    def hear(self, life: str, upto: int) -> tuple[str, list[Event], int]:
        """See :meth:`Events.hear`."""
        return self.events.hear(life, upto, HEAR_SECS)

    def where(self) -> tuple[str, str, str | None] | None:
        """Address, token and fingerprint for hosts, once it listens."""
        found = read_head_address(self.run_path)
        if found is None:
            return None
        return found.address, read_token(self.run_path / FILE_NAME), found.fingerprint


def _head_config(config: RunConfig) -> RunConfig:
    """The settings of the head, which listens at its node's address."""
    host, port = ray.util.get_node_ip_address(), config.ray.head_port
    if port is None:
        with socket.socket() as free:
            free.bind((host, 0))
            port = free.getsockname()[1]
    at_head = at_head_of(config, config.ray.head_actors)
    return over_hosts(config, at_head, write_address(host, port))


class _Told(logging.Handler):
    """Tells the driver of warnings."""

    def __init__(self, events: Events) -> None:
        super().__init__(logging.WARNING)
        self.events = events

    def emit(self, record: logging.LogRecord) -> None:
        """One warning; errors are told as results."""
        if record.levelno < logging.ERROR:
            self.events.tell("warning", logger=record.name, text=record.getMessage())


class Host(_Member):
    """A host: joins the head, which Ray finds for it wherever it is."""

    def __init__(self, order: Order, number: int, num_actors: int) -> None:
        super().__init__(order, f"host-{number}")
        self.num_actors = num_actors

    def run(self, head: Any) -> dict[str, Any]:
        """Take part in the run of ``head`` until it is over."""
        logs = self._logs()
        told = self._log(logs or self._own_logs() / "logs")
        return self._result(lambda: self._run(head, logs), told)

    def _logs(self) -> Path | None:
        """In the run directory, where this node sees it."""
        try:
            return self._shared() / "hosts" / self.name
        except UserError:
            return None

    def _own_logs(self) -> Path:
        return Path("runs").absolute() / f"{self.run_path.name}-{self.name}"

    def _run(self, head: Any, logs: Path | None) -> dict[str, Any]:
        log = logging.getLogger("rookery.ray")
        log.setLevel(logging.INFO)
        log.info("on %s", node_name())
        joining = Joining(
            way=WayByRay(head),
            num_actors=self.num_actors,
            give_up_secs=GIVE_UP_SECS,
            logs=logs or self._own_logs(),
            say=log.info,
            interrupt=self.interrupt,
        )
        with ForkServer() as server:
            return {"code": take_part(joining, server)}


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
