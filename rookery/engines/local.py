"""A process per role on this machine's cores. The driver supervises and does not learn.

A role ended by a signal is replaced, a few times; whoever keeps the session, if killed, takes the
whole fleet back to its last checkpoint; an exception stops the run with one line and the log's
path.
"""

from __future__ import annotations

import logging
import os
import select
from typing import Any

from rookery.core.errors import EnvironmentFault, RunFailed, StopRun
from rookery.core.patience import Attention
from rookery.core.signature import Signature
from rookery.engines.carries import carries
from rookery.engines.engine import Finish, Job
from rookery.engines.fleet import Fleet, Member
from rookery.engines.interrupt import Interrupt
from rookery.engines.local_roles import AnyWiring, wiring_of
from rookery.engines.nursery import ANSWER_SECS, Child, Nursery
from rookery.engines.wiring import RESTARTS
from rookery.envs.timeout import certain_secs
from rookery.programs.formations import build_program
from rookery.programs.graph import Program
from rookery.programs.validate import validate
from rookery.roles.build import probe
from rookery.roles.pulse import secs_in_env
from rookery.runs.checkpoint import LATEST, CheckpointStore
from rookery.runs.checkpoint_files import Checkpoint
from rookery.runs.directory import RunDirectory
from rookery.runs.session import Outcome
from rookery.runs.supervise import RestartBudget, describe_exit
from rookery.transport.control import Control, Message

_LOG = logging.getLogger(__name__)

POLL_SECS = 0.2
ACTING = ("actor", "worker")
"""Roles that have environments."""
KEEPERS = ("keeper", "learner", "worker")
"""Roles that keep the session: the first of these that the program has."""
BUSY = ("worker", "learner")
"""Roles that compute all the time."""
HANG_GRACE_SECS = 1.0
"""An environment's own alarm comes first: it can name the environment."""


def run(job: Job) -> Finish:
    """Carry the job's program to its end."""
    program = build_program(job.config)
    validate(program, "local", carries("local"))
    _check_cores(program)
    with job.nursery or Nursery() as nursery, Interrupt() as interrupt:
        driver = _Driver(
            job, program, job.signature or probe(job.config.env, job.config.seed), nursery
        )
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
        threads = node.replicas * node.num_threads
        if node.name in BUSY and threads > cores:
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
    """The name of the newest checkpoint that is there, of whichever sitting, whole or not."""
    link = run.checkpoints / LATEST
    return os.readlink(link) if link.is_symlink() else None


class _Driver:
    """Starts, watches and replaces the members of the fleet."""

    def __init__(self, job: Job, program: Program, signature: Signature, nursery: Nursery) -> None:
        self.job = job
        self.nursery = nursery
        self.program = program
        self.signature = signature
        self.budget = RestartBudget(job.config.supervise)
        self.finish: Finish | None = None
        self.stopping = False
        self.restarts = 0
        self.updates = 0
        self.wiring: AnyWiring | None = None
        self.keeper = next(name for name in KEEPERS if program.has(name))
        self.fleet = Fleet(job.run, nursery)
        self.evaluating: list[int] = []
        self.snapshots: list[int] = []
        """Steps at which replay has saved itself since the fleet was launched."""
        self.attention = Attention()
        self.latest_before = _latest(job.run)

    def launch(self, resume: Checkpoint | None) -> None:
        """Start every member, going on from ``resume`` if there is one."""
        config = self.job.config
        self.wiring = wiring_of(config).create(config, self.signature)
        self.wiring.counters[RESTARTS] = self.restarts
        if resume is not None:
            self.wiring.inherit(resume.path)
        self.nursery.name(self.job.run.path.name)
        self.nursery.share(self.wiring.pass_fds())
        self.fleet = Fleet(self.job.run, self.nursery)
        order: dict[str, Any] = {
            "run": str(self.job.run.path.absolute()),
            "config": config.to_tree(),
            "signature": self.signature.to_json(),
            "fds": self.wiring.descriptors(),
            "resume": str(resume.path.absolute()) if resume is not None else None,
            "start_steps": resume.steps if resume is not None else 0,
            "init_from": str(self.job.init_from.path.absolute()) if self.job.init_from else None,
            "snapshots": [],
            "tell_episodes": self.job.callbacks.on_episode is not None,
        }
        for node in self.program.nodes:
            for replica in range(node.replicas):
                own = {"role": node.name, "replica": replica, "num_threads": node.num_threads}
                member = Member(node.name, replica, order | own)
                self.fleet.members.append(member)
                self.fleet.launch(member)

    def supervise(self, interrupt: Interrupt) -> Finish:
        """Watch until the learner reports the outcome."""
        while self.finish is None:
            self._hear()
            self._bury()
            self._check_environments()
            if interrupt.requested and not self.stopping:
                self.stopping = True
                self._stop("interrupted", interrupt.reason)
        return self.finish

    def _stop(self, state: str, reason: str) -> None:
        """Ask the process that keeps the session to end the run."""
        self.fleet.tell(self.keeper, "stop", state=state, reason=reason)

    def _hear(self) -> None:
        """Handle messages; sleeps until one comes or a short while has passed."""
        speakers = {
            member.control.fileno(): member
            for member in self.fleet.members
            if member.control is not None and not member.control.closed
        }
        poll = select.poll()
        for descriptor in (*speakers, self.nursery.fileno()):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(POLL_SECS * 1000):
            if descriptor not in speakers:
                continue  # the nursery tells of an end, or has ended itself
            member = speakers[descriptor]
            assert member.control is not None
            for message in member.control.receive():
                self._handle(member, message)

    def _handle(self, member: Member, message: Message) -> None:
        kind = message.pop("kind")
        callbacks = self.job.callbacks
        if kind == "error":
            member.error = message
        elif kind == "done":
            member.done = True
        elif kind == "warning":
            _LOG.warning("%s: %s", member.name, message["text"])
        elif kind == "evaluate":
            self.evaluating.append(message["steps"])
            self.fleet.tell("evaluator", "evaluate", **message)
        elif kind == "evaluation":
            if message["steps"] in self.evaluating:
                self.evaluating.remove(message["steps"])
            self.fleet.tell(self.keeper, "evaluation", **message)
            self._call(callbacks.on_evaluation, {"steps": message["steps"]} | message["summary"])
        elif kind == "snapshot":
            self.fleet.tell("replay", "snapshot", **message)
        elif kind == "saved":
            self.snapshots.append(message["steps"])
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
        for member in list(self.fleet.members):
            if self.finish is not None or member.process is None:
                return
            code = self._exit_code(member.process, member.control)
            if self.nursery.code is not None:
                self._replace_nursery(self.nursery.code)
                return
            if code is None:
                continue
            self._last_words(member)
            if member.done and not code:
                continue  # a worker that was told it is over
            if not self._over():
                self._replace_or_fail(member, code)
            return

    def _exit_code(self, process: Child, control: Control | None) -> int | None:
        """How a member ended; None while it lives."""
        code = process.poll()
        if code is None and control is not None and control.closed:
            code = process.wait(ANSWER_SECS)  # it is ending
            if code is None:
                self.nursery.kill()  # stuck: it should have told by now
        return code

    def _over(self) -> bool:
        return self.finish is not None

    def _last_words(self, member: Member) -> None:
        """Messages sent before the end may still be on their way."""
        if member.control is not None:
            for message in member.control.receive():
                self._handle(member, message)

    def _replace_or_fail(self, member: Member, code: int) -> None:
        config = self.job.config
        log = self.job.run.log_path(member.role, member.replica)
        if member.error is not None:
            environment = bool(member.error["environment"])
            if not (environment and config.env.on_env_error == "restart"):
                fault = EnvironmentFault if environment else RunFailed
                raise fault(f"{member.name}: {member.error['message']} (log: {log})")
            cause = member.error["message"]
        elif member.hung:
            cause = f"hung in its environment past {config.env.step_timeout_secs:g} s"
            if config.env.on_env_error != "restart":
                raise EnvironmentFault(
                    f"{member.name}: environment {config.env.id} {cause}; raise "
                    "env.step_timeout_secs, fix it, or set env.on_env_error=restart "
                    f"(log: {log})"
                )
        else:
            cause = describe_exit(code)
        self._replace(member, cause, str(log))

    def _replace_nursery(self, code: int) -> None:
        """Without it nobody lives, so all begin anew."""
        if code >= 0:
            raise RunFailed(
                f"the nursery, which starts all processes, ended with {describe_exit(code)}: "
                f"{self.nursery.last_words()}"
            )
        cause = describe_exit(code)
        self._spend("nursery", cause, str(self.job.run.logs))
        _LOG.warning(
            "nursery: %s, and every process with it; the fleet goes back to the last checkpoint",
            cause,
        )
        self._relaunch()

    def _spend(self, name: str, cause: str, log: str) -> None:
        """Count a death, and give up after too many."""
        if not self.budget.allow(name):
            limit = self.job.config.supervise
            raise RunFailed(
                f"{name} ended more than {limit.max_restarts} times in "
                f"{limit.window_secs:g} s (last: {cause}); `rookery resume {self.job.run.path}` "
                f"goes on from the last checkpoint (log: {log})"
            )
        self.restarts += 1

    def _replace(self, member: Member, cause: str, log: str) -> None:
        self._spend(member.name, cause, log)
        if member.role == self.keeper:
            _LOG.warning("%s: %s; the fleet goes back to the last checkpoint", member.name, cause)
            self._relaunch()
            return
        _LOG.warning("%s: %s; replaced", member.name, cause)
        assert self.wiring is not None
        self.wiring.counters[RESTARTS] = self.restarts
        self.fleet.kill(member)
        member.life += 1
        member.order["snapshots"] = self.snapshots
        self.fleet.launch(member)
        if member.role == "evaluator" and member.control is not None:
            for steps in self.evaluating:
                member.control.send("evaluate", steps=steps)

    def _relaunch(self) -> None:
        """Everyone anew, with fresh memory: nothing half-written by the dead learner is read."""
        self.close(gently=False)
        if self.nursery.code is not None:
            self.nursery.restart()
        self.evaluating.clear()
        self.snapshots.clear()
        self.stopping = False  # who was told to stop is gone
        self.updates = 0
        self.launch(self._newest())

    def _newest(self) -> Checkpoint | None:
        """The newest checkpoint of this sitting, else the one that it began with."""
        if _latest(self.job.run) == self.latest_before:
            return self.job.resume
        return CheckpointStore(self.job.run.checkpoints).load("latest", parts=["session"])

    def _check_environments(self) -> None:
        """Kill who has been inside an environment for too long."""
        limit = certain_secs(self.job.config.env.step_timeout_secs) + HANG_GRACE_SECS
        begun = self.attention.look()
        for member in self.fleet.members:
            if member.role not in ACTING or self.wiring is None or member.process is None:
                continue
            cells = self.wiring.acting_pulse(member.replica)
            if secs_in_env(cells, begun) > limit and member.process.poll() is None:
                member.hung = True
                cells[:] = 0.0
                member.process.kill()

    def close(self, *, gently: bool) -> None:
        """End all processes and let go of what they shared."""
        self.fleet.end(gently=gently)
        if self.wiring is not None:
            self.wiring.close()
            self.wiring = None
