"""Watching over processes: hears them, sees who has died or hangs, and replaces them.

What a death means for the whole is for who asked to know: :class:`Keeper`.
"""

from __future__ import annotations

import select
from typing import Protocol

from rookery.core.errors import EnvironmentFault, RunFailed
from rookery.core.heartbeat import secs_in_env
from rookery.core.patience import Attention
from rookery.core.spec import Array
from rookery.engines.fleet import Fleet, Process
from rookery.engines.fork_server import ANSWER_SECS, Child
from rookery.engines.stopped import StoppedProcesses
from rookery.envs.timeout import certain_secs
from rookery.runs.config import RunConfig
from rookery.runs.supervise import RestartBudget, describe_exit
from rookery.transport.control import Control, Message

POLL_SECS = 0.2
HANG_GRACE_SECS = 1.0
"""An environment's own alarm comes first: it can name the environment."""


class Keeper(Protocol):
    """Whose processes they are."""

    def heard(self, process: Process, kind: str, message: Message) -> None:
        """A process said something that the supervisor does not need."""
        ...

    def over(self) -> bool:
        """Whether nobody is to be replaced any more."""
        ...

    def died(self, process: Process, cause: str) -> None:
        """A process ended by a signal, or its environment failed and may begin anew."""
        ...

    def gave_up(self, process: Process, why: str) -> None:
        """A process has died too often to be replaced again."""
        ...

    def go_back(self, why: str) -> None:
        """What was shared is lost or half written."""
        ...

    def heartbeat(self, process: Process) -> Array:
        """What the process last wrote of itself."""
        ...

    def how_to_go_on(self) -> str:
        """What the user can do when it has failed."""
        ...


class Supervisor:
    """Looks after the processes of ``fleet``, which may be another after :meth:`Keeper.go_back`.

    ::

        while not keeper.over():
            supervisor.look()
    """

    def __init__(
        self,
        fleet: Fleet,
        config: RunConfig,
        keeper: Keeper,
        budget: RestartBudget | None = None,
    ) -> None:
        """``budget``: of deaths, if there were some before."""
        self.fleet, self.config, self.keeper = fleet, config, keeper
        self.budget = budget or RestartBudget(config.supervise)
        self.restarts = 0
        self.attention = Attention()
        self.stopped = StoppedProcesses()

    def look(self) -> None:
        """Hear and see what has happened; sleeps until something does, or a short while."""
        self._hear()
        self._bury()
        self._check_environments()
        self.stopped.look(self.fleet.processes)

    def replace(self, process: Process) -> None:
        """Its next life."""
        self.fleet.kill(process)
        process.life += 1
        self.fleet.launch(process)

    # ---- messages --------------------------------------------------------------------------------

    def _hear(self) -> None:
        speakers = {
            process.control.fileno(): process
            for process in self.fleet.processes
            if process.control is not None and not process.control.closed
        }
        poll = select.poll()
        for descriptor in (*speakers, self.fleet.server.fileno()):
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(POLL_SECS * 1000):
            if descriptor in speakers:  # else the fork server tells of an end, or has ended itself
                self._listen_to(speakers[descriptor])

    def _listen_to(self, process: Process) -> None:
        control = process.control
        if control is None:
            return
        for message in control.receive():
            if process.control is not control:
                return  # all began anew at the one before
            kind = message.pop("kind")
            if kind == "error":
                process.error = message
            elif kind == "done":
                process.done = True
            else:
                self.keeper.heard(process, kind, message)

    # ---- ends ------------------------------------------------------------------------------------

    def _bury(self) -> None:
        """See who has died, and replace them or give up."""
        server = self.fleet.server
        for process in list(self.fleet.processes):
            if self.keeper.over() or process.child is None:
                return
            code = self._exit_code(process.child, process.control)
            if server.code is not None:
                self._without_fork_server(server.code)
                return
            if code is None:
                continue
            self._listen_to(process)  # messages sent before the end may still be on their way
            if all(process is not known for known in self.fleet.processes):
                return  # which had all begin anew
            if process.done and not code:
                continue  # one that was told it is over
            if not self.keeper.over():
                self._judge(process, code)
            return

    def _exit_code(self, child: Child, control: Control | None) -> int | None:
        """How a process ended; None while it lives."""
        code = child.poll()
        if code is None and control is not None and control.closed:
            code = child.wait(ANSWER_SECS)  # it is ending
            if code is None:
                self.fleet.server.kill()  # stuck: it should have told by now
        return code

    def _judge(self, process: Process, code: int) -> None:
        """Replace a process that has ended, or give up with what it said."""
        env, log = self.config.env, self.log_of(process)
        if process.error is not None and process.error["rewind"]:
            self.keeper.go_back(f"{process.name}: {process.error['message']}")
            return
        if process.error is not None:
            environment = bool(process.error["environment"])
            if not (environment and env.on_env_error == "restart"):
                fault = EnvironmentFault if environment else RunFailed
                raise fault(f"{process.name}: {process.error['message']} (log: {log})")
            cause = process.error["message"]
        elif process.hung:
            cause = f"hung in its environment past {env.step_timeout_secs:g} s"
            if env.on_env_error != "restart":
                raise EnvironmentFault(
                    f"{process.name}: environment {env.id} {cause}; raise "
                    "env.step_timeout_secs, fix it, or set env.on_env_error=restart "
                    f"(log: {log})"
                )
        else:
            cause = describe_exit(code)
        why = self._too_often(process.name, cause, log)
        if why is None:
            self.keeper.died(process, cause)
        else:
            self.keeper.gave_up(process, why)

    def _without_fork_server(self, code: int) -> None:
        """Without it nobody lives, so all begin anew."""
        if code >= 0:
            raise RunFailed(
                f"the fork server, which starts all processes, ended with {describe_exit(code)}: "
                f"{self.fleet.server.last_words()}"
            )
        cause = describe_exit(code)
        self.spend("fork server", cause, str(self.fleet.run.logs))
        self.keeper.go_back(f"fork server: {cause}, and every process with it")

    def spend(self, name: str, cause: str, log: str | None = None) -> None:
        """Count a death, and give up after too many."""
        why = self._too_often(name, cause, log or str(self.fleet.run.logs))
        if why is not None:
            raise RunFailed(f"{why}; {self.keeper.how_to_go_on()}")

    def _too_often(self, name: str, cause: str, log: str) -> str | None:
        """Count a death; what to say if there were too many."""
        if self.budget.allow(name):
            self.restarts += 1
            return None
        limit = self.config.supervise
        return (
            f"{name} ended more than {limit.max_restarts} times in {limit.window_secs:g} s "
            f"(last: {cause}; log: {log})"
        )

    def log_of(self, process: Process) -> str:
        """Where a process writes what it prints."""
        return str(self.fleet.run.log_path(process.node.name, process.replica))

    # ---- environments ----------------------------------------------------------------------------

    def _check_environments(self) -> None:
        """Kill who has been inside an environment for too long."""
        limit = certain_secs(self.config.env.step_timeout_secs) + HANG_GRACE_SECS
        begun = self.attention.look()
        for process in self.fleet.processes:
            if not process.node.has_envs or process.child is None:
                continue
            cells = self.keeper.heartbeat(process)
            if secs_in_env(cells, begun) > limit and process.child.poll() is None:
                process.hung = True
                cells[:] = 0.0
                process.child.kill()
