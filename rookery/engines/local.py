"""A process per role on this machine's cores. The driver supervises and does not learn.

A role ended by a signal is replaced, a few times; one whose death leaves something half written
takes all back to the last checkpoint; an exception stops the run with one line and the log's path.
"""

from __future__ import annotations

import logging
import os
import select
from typing import Any

from rookery.core.errors import EnvironmentFault, RunFailed, StopRun
from rookery.core.heartbeat import secs_in_env
from rookery.core.patience import Attention
from rookery.core.spec import Array
from rookery.engines.engine import Finish, Job
from rookery.engines.fleet import Fleet, Process
from rookery.engines.fork_server import ANSWER_SECS, Child, ForkServer
from rookery.engines.interrupt import Interrupt
from rookery.engines.process import SharedProgram
from rookery.engines.stopped import StoppedProcesses
from rookery.envs.timeout import certain_secs
from rookery.programs.graph import Program
from rookery.runs.checkpoint import LATEST, CheckpointStore
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.directory import RunDirectory
from rookery.runs.session import Outcome
from rookery.runs.stage import FIRST_BATCH, Stage, started
from rookery.runs.supervise import RestartBudget, describe_exit
from rookery.transport.control import Control, Message

_LOG = logging.getLogger(__name__)

POLL_SECS = 0.2
HANG_GRACE_SECS = 1.0
"""An environment's own alarm comes first: it can name the environment."""


def run(job: Job) -> Finish:
    """Carry the job's program to its end."""
    program = job.plan.program()
    _check_cores(program)
    with job.fork_server or ForkServer() as server, Interrupt() as interrupt:
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


def _latest(run: RunDirectory) -> str | None:
    """The name of the newest checkpoint that is there, of whichever session, whole or not."""
    link = run.checkpoints / LATEST
    return os.readlink(link) if link.is_symlink() else None


class _Driver:
    """Starts, watches and replaces the processes of a run."""

    def __init__(self, job: Job, program: Program, server: ForkServer) -> None:
        self.job, self.config = job, job.plan.config
        self.server = server
        self.program = program
        self.budget = RestartBudget(self.config.supervise)
        self.finish: Finish | None = None
        self.stopping = False
        self.restarts = 0
        self.updates = 0
        self.shared: SharedProgram | None = None
        self.fleet = Fleet(job.run, server)
        self.attention = Attention()
        self.stopped = StoppedProcesses()
        self.latest_before = _latest(job.run)
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
        self.fleet = Fleet(job.run, self.server)
        order: dict[str, Any] = {
            "run": str(job.run.path.absolute()),
            "config": self.config.to_tree(),
            "signature": job.plan.signature.to_json(),
            "fds": descriptors,
            "resume": str(resume.path.absolute()) if resume is not None else None,
            "start_steps": resume.steps if resume is not None else 0,
            "init_from": str(job.init_from.path.absolute()) if job.init_from else None,
            "restarts": self.restarts,
            "tell_episodes": job.callbacks.on_episode is not None,
        }
        for node in self.program.nodes:
            for replica in range(node.replicas):
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
            self._hear()
            self._bury()
            self._check_environments()
            self.stopped.look(self.fleet.processes)
            if interrupt.requested and not self.stopping:
                self.stopping = True
                self._stop("interrupted", interrupt.reason)
        return self.finish

    def _stop(self, state: str, reason: str) -> None:
        """Ask the process that keeps the session to end the run, and all to leave what is half
        made."""
        for process in self.fleet.processes:
            self.fleet.tell(process, "leave")
        self.fleet.tell(self.owner, "stop", state=state, reason=reason)

    def _hear(self) -> None:
        """Handle messages; sleeps until one comes or a short while has passed."""
        speakers = {
            process.control.fileno(): process
            for process in self.fleet.processes
            if process.control is not None and not process.control.closed
        }
        poll = select.poll()
        for descriptor in (*speakers, self.server.fileno()):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(POLL_SECS * 1000):
            if descriptor not in speakers:
                continue  # the fork server tells of an end, or has ended itself
            process = speakers[descriptor]
            assert process.control is not None
            for message in process.control.receive():
                self._handle(process, message)

    def _handle(self, process: Process, message: Message) -> None:
        kind = message.pop("kind")
        callbacks = self.job.callbacks
        if kind == "error":
            process.error = message
        elif kind == "done":
            process.done = True
        elif kind == "warning":
            _LOG.warning("%s: %s", process.name, message["text"])
        elif kind == "started":
            self._tell_start(process)
        elif kind == "stage":
            self.begun = True
            told = message["stage"]
            callbacks.tell_stage(Stage(**told) if told is not None else None)
        elif kind == "steps" and callbacks.on_steps is not None:
            callbacks.on_steps(message["steps"])
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
            restarts=self.restarts,
            extra={"reached_at": message["reached_at"]},
        )

    def _bury(self) -> None:
        """See who has died, and replace them or give up."""
        for process in list(self.fleet.processes):
            if self.finish is not None or process.child is None:
                return
            code = self._exit_code(process.child, process.control)
            if self.server.code is not None:
                self._replace_fork_server(self.server.code)
                return
            if code is None:
                continue
            self._last_words(process)
            if process.done and not code:
                continue  # one that was told it is over
            if not self._over():
                self._replace_or_fail(process, code)
            return

    def _exit_code(self, child: Child, control: Control | None) -> int | None:
        """How a process ended; None while it lives."""
        code = child.poll()
        if code is None and control is not None and control.closed:
            code = child.wait(ANSWER_SECS)  # it is ending
            if code is None:
                self.server.kill()  # stuck: it should have told by now
        return code

    def _over(self) -> bool:
        return self.finish is not None

    def _last_words(self, process: Process) -> None:
        """Messages sent before the end may still be on their way."""
        if process.control is not None:
            for message in process.control.receive():
                self._handle(process, message)

    def _replace_or_fail(self, process: Process, code: int) -> None:
        config = self.config
        log = self.job.run.log_path(process.node.name, process.replica)
        if process.error is not None and process.error["rewind"]:
            self._go_back(f"{process.name}: {process.error['message']}")
            return
        if process.error is not None:
            environment = bool(process.error["environment"])
            if not (environment and config.env.on_env_error == "restart"):
                fault = EnvironmentFault if environment else RunFailed
                raise fault(f"{process.name}: {process.error['message']} (log: {log})")
            cause = process.error["message"]
        elif process.hung:
            cause = f"hung in its environment past {config.env.step_timeout_secs:g} s"
            if config.env.on_env_error != "restart":
                raise EnvironmentFault(
                    f"{process.name}: environment {config.env.id} {cause}; raise "
                    "env.step_timeout_secs, fix it, or set env.on_env_error=restart "
                    f"(log: {log})"
                )
        else:
            cause = describe_exit(code)
        self._replace(process, cause, str(log))

    def _replace_fork_server(self, code: int) -> None:
        """Without it nobody lives, so all begin anew."""
        if code >= 0:
            raise RunFailed(
                f"the fork server, which starts all processes, ended with {describe_exit(code)}: "
                f"{self.server.last_words()}"
            )
        cause = describe_exit(code)
        self._spend("fork server", cause, str(self.job.run.logs))
        self._go_back(f"fork server: {cause}, and every process with it")

    def _spend(self, name: str, cause: str, log: str) -> None:
        """Count a death, and give up after too many."""
        if not self.budget.allow(name):
            limit = self.config.supervise
            raise RunFailed(
                f"{name} ended more than {limit.max_restarts} times in "
                f"{limit.window_secs:g} s (last: {cause}); {self.job.run.how_to_go_on()} "
                f"(log: {log})"
            )
        self.restarts += 1

    def _replace(self, process: Process, cause: str, log: str) -> None:
        self._spend(process.name, cause, log)
        if process.node.on_death == "rewind":
            self._go_back(f"{process.name}: {cause}")
            return
        _LOG.warning("%s: %s; replaced", process.name, cause)
        self.fleet.tell(self.owner, "restarts", number=self.restarts)
        self.fleet.kill(process)
        process.life += 1
        self.fleet.launch(process)

    def _go_back(self, why: str) -> None:
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
        if _latest(self.job.run) == self.latest_before:
            return self.job.resume
        return CheckpointStore(self.job.run.checkpoints).load("latest", parts=["session"])

    def _check_environments(self) -> None:
        """Kill who has been inside an environment for too long."""
        limit = certain_secs(self.config.env.step_timeout_secs) + HANG_GRACE_SECS
        begun = self.attention.look()
        for process in self.fleet.processes:
            if not process.node.has_envs or process.child is None:
                continue
            cells = self._heartbeat(process)
            if secs_in_env(cells, begun) > limit and process.child.poll() is None:
                process.hung = True
                cells[:] = 0.0
                process.child.kill()

    def _heartbeat(self, process: Process) -> Array:
        """What the process last wrote of itself."""
        assert self.shared is not None
        edges = self.program.edges_of(process.node.name)
        vitals = next(
            edge
            for edge in edges
            if edge.source == process.node.name and edge.port.name == "vitals"
        )
        cells: Array = self.shared.wired.memory(vitals)["cells"][process.replica]
        return cells

    def close(self, *, gently: bool) -> None:
        """End all processes and let go of what they shared."""
        self.fleet.end(gently=gently)
        if self.shared is not None:
            self.shared.close()
            self.shared = None
