"""A process per role on this machine's cores. The driver supervises and does not learn.

A role ended by a signal is replaced, a few times; one whose death leaves something half written
takes all back to the last checkpoint; an exception stops the run with one line and the log's path.
What hosts that join run has places in the program; the gateway, a process too, stands for them.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from rookery.core.errors import RunFailed, StopRun
from rookery.core.spec import Array
from rookery.engines.engine import Finish, Job
from rookery.engines.fleet import Fleet, Process
from rookery.engines.fork_server import ForkServer
from rookery.engines.interrupt import Interrupt
from rookery.engines.process import SharedProgram, heartbeats_of
from rookery.engines.supervision import Supervisor
from rookery.programs.graph import Program
from rookery.runs.checkpoint import LATEST, CheckpointStore
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.directory import RunDirectory
from rookery.runs.session import Outcome
from rookery.runs.stage import FIRST_BATCH, Stage, started
from rookery.transport.control import Message

_LOG = logging.getLogger(__name__)


def run(job: Job) -> Finish:
    """Carry the job's program to its end."""
    program = job.plan.program()
    _check_cores(program)
    with job.fork_server or ForkServer() as server, job.interrupt as interrupt:
        driver = _Driver(job, program, server)
        try:
            driver.launch(job.resume)
            finish = driver.supervise(interrupt)
        except BaseException:
            driver.close(gently=False)
            raise
        driver.close(gently=True)
    return finish


def _check_cores(program: Program) -> None:
    """More of those that compute all the time than there are cores take turns; say so."""
    cores = len(os.sched_getaffinity(0))
    for node in program.nodes:
        if node.computes and node.replicas * node.num_threads > cores:
            _LOG.warning(
                "%s x%d with %d compute threads each on %d cores: more than %d threads in all make "
                "no more steps a second",
                node.name,
                node.replicas,
                node.num_threads,
                cores,
                cores,
            )


def newest_name(run: RunDirectory) -> str | None:
    """The name of the newest checkpoint that is there, of whichever session, whole or not."""
    link = run.checkpoints / LATEST
    return os.readlink(link) if link.is_symlink() else None


class _Driver:
    """Starts the processes of a run, and says what follows from what they do."""

    def __init__(self, job: Job, program: Program, server: ForkServer) -> None:
        self.job, self.config, self.server = job, job.plan.config, server
        self.program = program
        self.finish: Finish | None = None
        self.launches = 0
        self.room = 0
        """Free places of those without whom nobody goes on."""
        self.stopping = False
        self.updates = 0
        self.shared: SharedProgram | None = None
        self.fleet = Fleet(job.run, server)
        self.supervisor = Supervisor(self.fleet, self.config, self)
        self.latest_before = newest_name(job.run)
        self.started: set[str] = set()
        """Names of the processes that are there."""
        self.begun = False
        """Whether the one that keeps the session has said what it does."""

    def launch(self, resume: Checkpoint | None) -> None:
        """Start every process, going on from ``resume`` if there is one."""
        job = self.job
        self.shared = SharedProgram.create(self.program)
        descriptors = self.shared.descriptors()
        self.server.name(job.run.path.name)
        self.server.share(self.shared.pass_fds())
        self.fleet = self.supervisor.fleet = Fleet(job.run, self.server)
        order: dict[str, Any] = {
            "run": str(job.run.path.absolute()),
            "config": self.config.to_tree(),
            "signature": job.plan.signature.to_json(),
            "fds": descriptors,
            "resume": str(resume.path.absolute()) if resume is not None else None,
            "start_steps": resume.steps if resume is not None else 0,
            "init_from": str(job.init_from.path.absolute()) if job.init_from else None,
            "restarts": self.supervisor.restarts,
            "tell_episodes": job.callbacks.on_episode is not None,
            "places": None,
            "directory": None,
            "parts": None,
            "first": not self.launches,
            "launch": self.launches,
        }
        self.launches += 1
        left = self.program.open_to_hosts
        self.room = sum(node.left_to_hosts for node in left if node.on_death == "rewind")
        for node in self.program.nodes:
            for replica in range(node.replicas - node.left_to_hosts):
                own = {"role": node.name, "replica": replica, "num_threads": node.num_threads}
                process = Process(node, replica, order | own)
                self.fleet.processes.append(process)
        self._tell_start()
        for process in self.fleet.processes:
            self.fleet.launch(process)

    @property
    def owner(self) -> Process:
        """The process that keeps the session."""
        return next(process for process in self.fleet.processes if process.node.keeps_session)

    def supervise(self, interrupt: Interrupt) -> Finish:
        """Watch until the session's process reports the outcome."""
        while self.finish is None:
            self.supervisor.look()
            stop = interrupt.stopping()
            if stop is not None and not self.stopping:
                self.stopping = True
                self._stop(stop.state, stop.reason)
            if stop is not None and self.finish is None and self._waits_for_hosts():
                self.finish = self._as_it_was(Outcome(stop.state, stop.reason))
        return self.finish

    def _waits_for_hosts(self) -> bool:
        """Whether those who step together are not all there: then nobody does anything."""
        return self.room > 0

    def _as_it_was(self, outcome: Outcome) -> Finish:
        """The end of a session that goes no further than its newest checkpoint."""
        newest = self._newest()
        steps = newest.steps if newest is not None else 0
        secs = newest.parts["session"].data["wall_secs"] if newest is not None else 0.0
        return Finish(outcome, steps, self.updates, secs, self.supervisor.restarts)

    def _stop(self, state: str, reason: str) -> None:
        """Ask the process that keeps the session to end the run, and all to leave what is half
        made."""
        for process in self.fleet.processes:
            self.fleet.tell(process, "leave")
        self.fleet.tell(self.owner, "stop", state=state, reason=reason)

    # ---- what the supervisor asks and tells ------------------------------------------------------

    def heard(self, process: Process, kind: str, message: Message) -> None:
        """What a process says of the run."""
        callbacks = self.job.callbacks
        if kind == "warning":
            _LOG.warning("%s: %s", process.name, message["text"])
        elif kind == "started":
            self._tell_start(process)
        elif kind == "stage":
            self.begun = True
            told = message["stage"]
            callbacks.tell_stage(Stage(**told) if told is not None else None)
        elif kind == "steps" and callbacks.on_steps is not None:
            callbacks.on_steps(message["steps"])
        elif kind == "notice" and callbacks.on_notice is not None:
            callbacks.on_notice(message["text"])
        elif kind == "evaluation":
            self._call(callbacks.on_evaluation, message["record"])
        elif kind == "record":
            for told in callbacks.on_record:
                told(message["record"])
            if message["record"]["updates"] > self.updates:
                self.updates = message["record"]["updates"]
                self._call(callbacks.on_update, message["record"])
        elif kind == "episode":
            self._call(callbacks.on_episode, message["record"])
        elif kind == "outcome":
            self._end(message)
        elif kind == "room":
            self.room = message["places"]
        elif kind == "lost" and not self.over():
            self.supervisor.spend(message["host"], message["text"])
            self.go_back(message["text"])

    def _tell_start(self, process: Process | None = None) -> None:
        """Say how many processes are there, until one of them says what it does."""
        if process is None:
            self.started, self.begun = set(), False
        else:
            self.started.add(process.name)
        if self.begun:
            return
        done, total = len(self.started), len(self.fleet.processes)
        self.job.callbacks.tell_stage(FIRST_BATCH if done == total else started(done, total))

    def _call(self, callback: Any, record: dict[str, Any]) -> None:
        if callback is None:
            return
        try:
            callback(record)
        except StopRun as request:
            self._stop("stopped", str(request) or "a callback asked for it")

    def _end(self, message: Message) -> None:
        self.finish = Finish(
            Outcome(message["state"], message["reason"]),
            message["steps"],
            message["updates"],
            message["wall_secs"],
            restarts=self.supervisor.restarts,
            extra={"reached_at": message["reached_at"]},
        )

    def over(self) -> bool:
        """Whether the session has ended."""
        return self.finish is not None

    def died(self, process: Process, cause: str) -> None:
        """Replace one, or go back with all."""
        if process.node.on_death == "rewind":
            self.go_back(f"{process.name}: {cause}")
            return
        _LOG.warning("%s: %s; replaced", process.name, cause)
        self.fleet.tell(self.owner, "restarts", number=self.supervisor.restarts)
        self.supervisor.replace(process)

    def gave_up(self, process: Process, why: str) -> None:
        """The run ends, or goes on without one that it can miss."""
        if process.node.needed:
            raise RunFailed(f"{why}; {self.how_to_go_on()}")
        _LOG.warning("%s; the run goes on without it", why)
        self.fleet.kill(process)
        self.fleet.processes.remove(process)

    def go_back(self, why: str) -> None:
        """Everyone anew, with fresh memory: nothing half-written by the dead is read."""
        _LOG.warning("%s; %s", why, self._where_to_go_on())
        self.close(gently=False)
        if self.server.code is not None:
            self.server.restart()
        self.stopping = False  # who was told to stop is gone
        self.updates = 0
        self.launch(self._newest())

    def _where_to_go_on(self) -> str:
        newest = self._newest()
        if newest is None:
            return "the fleet begins again, there is no checkpoint yet"
        return f"the fleet goes back to the checkpoint at step {newest.steps:,}"

    def _newest(self) -> Checkpoint | None:
        """The newest checkpoint of this session, else the one that it began with."""
        if newest_name(self.job.run) == self.latest_before:
            return self.job.resume
        return CheckpointStore(self.job.run.checkpoints).load("latest", parts=["session"])

    def heartbeat(self, process: Process) -> Array:
        """What the process last wrote of itself."""
        assert self.shared is not None
        vitals = heartbeats_of(self.program, process.node)
        cells: Array = self.shared.wired.memory(vitals)["cells"][process.replica]
        return cells

    def how_to_go_on(self) -> str:
        """From the last checkpoint, if there is one."""
        return self.job.run.how_to_go_on()

    def close(self, *, gently: bool) -> None:
        """End all processes and let go of what they shared."""
        if self.finish is not None:
            outcome = self.finish.outcome
            self.fleet.end(gently=gently, state=outcome.state, reason=outcome.reason)
        else:
            self.fleet.end(gently=gently, state="interrupted")
        if self.shared is not None:
            self.shared.close()
            self.shared = None
