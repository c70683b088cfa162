"""Engine ``ray``: head and hosts as actors of a Ray cluster, which starts them again where there is
room.

Ray only places processes. The head is engine ``local`` with a gateway, hosts join it, and
experience travels by the same link as between any machines. The driver asks for room, hears what
happens and ends it all; nothing outlives it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from rookery.core.errors import EnvironmentFault, RunFailed, StopRun, UserError
from rookery.core.hosts import Probe
from rookery.engines.engine import Finish, Job
from rookery.engines.interrupt import Interrupt, Stop
from rookery.engines.local import newest_name
from rookery.engines.ray_actors import HOSTS, Head, Host
from rookery.engines.ray_bundles import asked_of, together
from rookery.engines.ray_cluster import check_answers, connected, node_name
from rookery.engines.ray_room import Room
from rookery.recipes.on_nodes import at_head_of
from rookery.runs.config import RunConfig
from rookery.runs.find import load_checkpoint
from rookery.runs.session import Outcome, OutcomeState
from rookery.runs.shared_probe import probe_in
from rookery.runs.stage import Stage, starting
from rookery.runs.supervise import RestartBudget
from rookery.runs.versions import versions_here

import ray  # isort: skip  (after ray_cluster, which says what to do where it is not installed)
from ray.exceptions import RayActorError, RayError  # isort: skip

_LOG = logging.getLogger(__name__)

POLL_SECS = 0.2
TELL_SECS = 20.0
"""A head that is not there after so long is told of."""
READY_SECS = 0.5
END_SECS = 10.0
"""How long hosts may take to hear that the run is over."""
_FAULTS = {EnvironmentFault.exit_code: EnvironmentFault, RunFailed.exit_code: RunFailed}


def run(job: Job) -> Finish:
    """Carry the job's program to its end."""
    config = job.plan.config
    at_head = at_head_of(config, config.ray.head_actors)

    def cpus() -> float:
        return together(asked_of(config, at_head=at_head, node_cpus=()).all()).get("CPU", 1.0)

    job.callbacks.tell_stage(starting("Ray"))
    hosts = job.run.path / HOSTS
    hosts.mkdir(exist_ok=True)
    with (
        connected(config.ray, cpus) as cluster,
        probe_in(hosts) as probe,
        job.interrupt as interrupt,
    ):
        asked = asked_of(config, at_head=at_head, node_cpus=cluster.node_cpus())
        room = Room(cluster, asked, config.ray)
        driver = _Driver(job, room, _order(job, probe))
        try:
            if not room.wait(interrupt, driver.wait_for_room):
                return driver.as_it_was(interrupt)
            driver.launch()
            return driver.supervise(interrupt)
        finally:
            driver.close()


def check_ray(config: RunConfig) -> None:
    """Refuse a cluster that does not answer, before a run is."""
    check_answers(config.ray)


def _order(job: Job, probe: Probe) -> dict[str, Any]:
    """What head and hosts are told, in all their lives."""
    callbacks = job.callbacks
    wanted = {
        "update": callbacks.on_update,
        "episode": callbacks.on_episode,
        "evaluation": callbacks.on_evaluation,
    }
    return {
        "run": str(job.run.path.absolute()),
        "config": job.plan.config.to_tree(),
        "signature": job.plan.signature.to_json(),
        "resume": str(job.resume.path.absolute()) if job.resume is not None else None,
        "init_from": str(job.init_from.path.absolute()) if job.init_from is not None else None,
        "latest_before": newest_name(job.run),
        "wanted": [name for name, callback in wanted.items() if callback is not None],
        "probe": asdict(probe),
        "driver": node_name(),
        "ip": ray.util.get_node_ip_address(),
        "versions": versions_here(),
    }


class _Driver:
    """Asks for room, starts head and hosts, and hears what becomes of them."""

    def __init__(self, job: Job, room: Room, order: dict[str, Any]) -> None:
        self.job, self.room, self.order = job, room, order
        self.config = job.plan.config
        self.budget = RestartBudget(self.config.supervise)
        self.head: Any = None
        self.head_done: Any = None
        """The promise of how the run ends."""
        self.hosts: dict[Any, tuple[int, Any]] = {}
        """Number and actor of each host, by the promise of how its part ends."""
        self.heard: Any = None
        self.life, self.upto = "", 0
        self.lost_at: float | None = None
        """Since when nobody is heard of the head."""
        self.told = False
        self.finish: Finish | None = None
        self.failure: UserError | None = None
        self.stop: Stop | None = None
        """Why the head was told to end."""

    # ---- start and end ---------------------------------------------------------------------------

    def wait_for_room(self, missing: str) -> None:
        """Say what is asked and what is there."""
        self.say(missing)
        self.job.callbacks.tell_stage(starting("waiting for room on the cluster"))

    def launch(self) -> None:
        """Start the head and the hosts; those that are not needed come when there is room."""
        self.head = self.room.head(Head, self.order)
        self.head_done = _for_life(self.head)
        hosts = self.room.asked.hosts
        for number, host in enumerate(hosts):
            actor = self.room.host(number, Host, self.order, number, host.num_actors)
            self.hosts[_for_life(actor, self.head)] = number, actor
        if later := len(hosts) - self.room.asked.num_needed:
            self.say(f"{later} of {len(hosts)} hosts come as there is room for them")

    def close(self) -> None:
        """End whoever is left, and give the room back."""
        with suppress(RayError):
            if self.finish is not None:
                self._let_hosts_end(self.finish.outcome)
            for _, actor in self.hosts.values():
                ray.kill(actor)
            if self.head is not None:
                ray.kill(self.head)
        self.room.give_back()

    def _let_hosts_end(self, outcome: Outcome) -> None:
        """They hear from the head that the run is over, and of an interrupted one from here."""
        ready = {actor.__ray_ready__.remote(): done for done, (_, actor) in self.hosts.items()}
        if not ready:
            return
        # One that waits for room has nothing to end.
        there, _ = ray.wait([*ready], num_returns=len(ready), timeout=READY_SECS)
        if outcome.state == "interrupted":
            for promise in there:
                self.hosts[ready[promise]][1].stop.remote("interrupted", outcome.reason)
        if there:
            ending = [ready[promise] for promise in there]
            ray.wait(ending, num_returns=len(ending), timeout=END_SECS)

    def as_it_was(self, interrupt: Interrupt) -> Finish:
        """The end of a session that goes no further than its newest checkpoint."""
        stop, newest = interrupt.stopping(), self.job.resume
        assert stop is not None
        if newest_name(self.job.run) != self.order["latest_before"]:
            newest = load_checkpoint(self.job.run.path, "latest", ["session"])
        steps = newest.steps if newest is not None else 0
        secs = newest.parts["session"].data["wall_secs"] if newest is not None else 0.0
        return Finish(Outcome(stop.state, stop.reason), steps, 0, secs, self.budget.total)

    # ---- while it runs ---------------------------------------------------------------------------

    def supervise(self, interrupt: Interrupt) -> Finish:
        """Hear what happens until the head says how the run has ended."""
        while self.finish is None:
            stop = interrupt.stopping()
            if stop is not None:
                self._stop(stop.state, stop.reason)
            self._listen()
            self._look_for_head(interrupt)
        if self.failure is not None:
            raise self.failure
        return self.finish

    def _listen(self) -> None:
        """Take in what has come, or wait a short while."""
        if self.heard is None:
            self.heard = self.head.hear.remote(self.life, self.upto)
        promises = [self.heard, self.head_done, *self.hosts]
        done, _ = ray.wait(promises, num_returns=1, timeout=POLL_SECS)
        if self.heard in done:
            self._hear()
        elif self.head_done in done:
            self._end()
        for promise in done:
            if promise in self.hosts:
                self._host_ended(promise)

    def _hear(self) -> None:
        promise, self.heard = self.heard, None
        try:
            self.life, events, self.upto = ray.get(promise)
        except RayActorError as error:
            self._lose_head(error)
            return
        for kind, content in events:
            self._tell(kind, content)

    def _end(self) -> None:
        """The head has ended; what it said before comes first."""
        try:
            result = ray.get(self.head_done)
        except RayError as error:
            raise RunFailed(f"the head cannot be started: {_line(error)}") from error
        with suppress(RayError):
            _, events, _ = ray.get(self.head.hear.remote(self.life, self.upto), timeout=END_SECS)
            for kind, content in events:
                self._tell(kind, content)
        if "error" in result:
            raise self.failure or _fault(result)
        outcome = Outcome(**result.pop("outcome"))
        result["restarts"] += self.budget.total
        self.finish = Finish(outcome, **result)

    def _host_ended(self, promise: Any) -> None:
        number, actor = self.hosts.pop(promise)
        try:
            result = ray.get(promise)
        except RayError as error:
            result = {"error": f"it cannot be started: {_line(error)}", "exit_code": 4}
        ray.kill(actor)
        if "error" not in result or self.stop is not None:
            return
        fault = _fault(result, f"host {number}: ")
        if self.config.joined == "some" or not (self.hosts or self._acts_at_head()):
            self.failure = fault
            self._stop("stopped", "a host has failed")
        else:
            self.warn(f"{fault}; the run goes on without it")

    def _acts_at_head(self) -> bool:
        return at_head_of(self.config, self.config.ray.head_actors) > 0

    def _stop(self, state: OutcomeState, reason: str) -> None:
        """Have the head end the run with a checkpoint, as soon as there is one."""
        if self.stop is None:
            self.stop = Stop("interrupted" if state == "interrupted" else "stopped", reason)
            self.head.stop.remote(*self.stop)

    # ---- a head that is lost ---------------------------------------------------------------------

    def _lose_head(self, error: RayActorError) -> None:
        """Ray starts it again; it then goes on by itself."""
        time.sleep(POLL_SECS)
        if self.lost_at is not None:
            return
        self.lost_at, self.told = time.monotonic(), False
        if not self.budget.allow("head"):
            limit = self.config.supervise
            raise RunFailed(
                f"the head ended more than {limit.max_restarts} times in {limit.window_secs:g} s "
                f"(last: {_line(error)}); {self.job.run.how_to_go_on()}"
            )
        self.warn("the head is lost; Ray starts it again where there is room")
        self.job.callbacks.tell_stage(Stage("starting: the head again"))

    def _look_for_head(self, interrupt: Interrupt) -> None:
        """Say what a lost head waits for, and give up at last."""
        if self.lost_at is None:
            return
        waited = time.monotonic() - self.lost_at
        if interrupt.requested and waited > END_SECS:
            self.finish = self.as_it_was(interrupt)
        if waited > self.config.ray.wait_secs:
            missing = self.room.missing([self.room.asked.head])
            raise RunFailed(
                f"no head for {waited:.0f} s (ray.wait_secs): {missing}; "
                f"{self.job.run.how_to_go_on()}"
            )
        if waited > TELL_SECS and not self.told:
            self.told = True
            self.warn(f"still no head: {self.room.missing([self.room.asked.head])}")

    # ---- what the head tells ---------------------------------------------------------------------

    def _tell(self, kind: str, content: Mapping[str, Any]) -> None:
        callbacks = self.job.callbacks
        if kind == "begins":
            self._head_begins(**content)
        elif kind == "stage":
            stage = content["stage"]
            callbacks.tell_stage(Stage(**stage) if stage is not None else None)
        elif kind == "steps" and callbacks.on_steps is not None:
            callbacks.on_steps(content["steps"])
        elif kind == "notice":
            self.say(content["text"])
        elif kind == "warning":
            logging.getLogger(content["logger"]).warning("%s", content["text"])
        elif kind == "record":
            for told in callbacks.on_record:
                told(content["record"])
        elif kind in ("update", "episode", "evaluation"):
            self._call(dict(self._callbacks())[kind], content["record"])

    def _callbacks(self) -> Iterator[tuple[str, Callable[..., Any] | None]]:
        callbacks = self.job.callbacks
        yield "update", callbacks.on_update
        yield "episode", callbacks.on_episode
        yield "evaluation", callbacks.on_evaluation

    def _call(self, callback: Callable[..., Any] | None, record: dict[str, Any]) -> None:
        try:
            if callback is not None:
                callback(record)
        except StopRun as request:
            self._stop("stopped", str(request) or "a callback asked for it")

    def _head_begins(self, node: str, steps: int | None) -> None:
        again = self.lost_at is not None
        self.lost_at = None
        where = "from the beginning" if steps is None else f"from the checkpoint at step {steps:,}"
        if again:
            self.warn(f"the head goes on at {node} {where}")
            if self.stop is not None:  # who was told to stop is gone
                self.head.stop.remote(*self.stop)
        else:
            self.say(f"head on {node}")

    def say(self, text: str) -> None:
        """Something that the user should see once."""
        if self.job.callbacks.on_notice is not None:
            self.job.callbacks.on_notice(text)
        else:
            _LOG.info("%s", text)

    def warn(self, text: str) -> None:
        """What may need attention."""
        _LOG.warning("%s", text)


def _for_life(actor: Any, *given: Any) -> Any:
    """The promise of how an actor's part ends, in whichever of its lives."""
    return actor.run.options(max_task_retries=-1).remote(*given)


def _fault(result: Mapping[str, Any], before: str = "") -> UserError:
    """What a head or host has raised."""
    kind = _FAULTS.get(result["exit_code"], UserError)
    return kind(f"{before}{result['error']}")


def _line(error: BaseException) -> str:
    """What Ray says, in one line."""
    return " ".join(str(error).split())[:500] or type(error).__name__
