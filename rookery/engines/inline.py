"""Every role in one process: in one thread in turn, which repeats exactly, or actors as threads.

In turn it is the ground truth for the other engines. With threads, torch and environments in C++
let go of Python's lock while they compute, so actors run beside the learner.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import torch

from rookery.carriers.heap import allocate
from rookery.core.errors import RunFailed, UserError
from rookery.core.heartbeat import secs_in_env
from rookery.core.patience import Attention
from rookery.core.ports import InTurn, Wakeup
from rookery.engines.assemble import Wired, layouts
from rookery.engines.engine import Finish, Job
from rookery.engines.interrupt import Interrupt, Stop
from rookery.engines.loop import Member, build_member, run_members
from rookery.engines.session_owner import SessionOwner
from rookery.envs.faults import hung
from rookery.envs.timeout import certain_secs
from rookery.programs.plan import compute_threads
from rookery.runs.checkpoint_files import State, episodes_part
from rookery.runs.stage import FIRST_BATCH, starting
from rookery.transport.eventfd import EventFd

_LOG = logging.getLogger(__name__)

END_SECS = 30.0
"""How long threads may take to end when the run is over."""
HURRY_SECS = 5.0
"""The same when it failed."""


def run(job: Job) -> Finish:
    """Carry the job's program to its end."""
    plan = job.plan
    program = plan.program()
    job.callbacks.tell_stage(starting(f"{plan.config.env.num_envs:,} environments"))
    with job.interrupt as interrupt, compute_threads(program.owner.num_threads):
        crew = _Crew(job, interrupt)
        owner = SessionOwner(
            plan.config,
            job.run,
            program,
            crew.owner,
            job.callbacks,
            crew.stopping,
            others=lambda: [member for member in crew.here if member is not crew.owner],
            parts_of_others=crew.parts,
        )
        crew.no_time_to_evaluate = owner.session.no_time_to_evaluate
        weights = job.init_from.parts["weights"] if job.init_from is not None else None
        try:
            with owner:
                owner.begin(job.resume, weights)
                crew.start()
                job.callbacks.tell_stage(FIRST_BATCH)
                run_members(crew.here, crew.stopping, owner, sleeps=bool(crew.threads))
                crew.stop_acting()
                owner.conclude()
                crew.end(END_SECS)
        finally:
            crew.close()
    return owner.finish()


class _Crew:
    """All members, and the threads of those that have one."""

    def __init__(self, job: Job, interrupt: Interrupt) -> None:
        self.job, self.interrupt = job, interrupt
        self.no_time_to_evaluate: Callable[[], bool] = lambda: False
        self.program = job.plan.program()
        self.over = threading.Event()
        concurrent = job.plan.concurrent
        self.wakeups = {
            node.name: [_wakeup(concurrent) for _ in range(node.replicas)]
            for node in self.program.nodes
        }
        self.wired = Wired(self.program, allocate(layouts(self.program)), self.wakeups)
        self._lost_track = False
        """Whether one that follows episodes could not go on where they are."""
        members = [self._build(place) for place in self._places()]
        if self._lost_track:
            members = [self._begun_anew(each) if each.node.has_envs else each for each in members]
        owner = self.program.owner.name
        self.owner = next(member for member in members if member.node.name == owner)
        self.others = [member for member in members if member is not self.owner]
        apart = [member for member in self.others if concurrent and member.node.busy]
        self.here = [member for member in members if member not in apart]
        self.threads = [
            threading.Thread(target=self._run, args=(member,), name=member.name, daemon=True)
            for member in apart
        ]
        self.failures: list[tuple[Member, BaseException]] = []
        self.attention = Attention()

    def _places(self) -> list[tuple[str, int]]:
        nodes = self.program.nodes
        return [(node.name, replica) for node in nodes for replica in range(node.replicas)]

    def _build(self, place: tuple[str, int]) -> Member:
        """A member where the checkpoint had it; if its state does not fit, in new episodes."""
        name, replica = place
        who, node, resume = f"{name}-{replica}", self.program.node(name), self.job.resume
        if resume is None or not node.in_episodes or self.job.plan.concurrent:
            return self._member(name, replica, exact=resume is not None and not node.in_episodes)
        saved = resume.parts.get(episodes_part(replica, node.episodes_of))
        if saved is None:
            _LOG.warning("%s begins new episodes: the checkpoint has no state for it", who)
            self._lost_track |= node.follows_episodes
            return self._member(name, replica, exact=False)
        member = self._member(name, replica, exact=True)
        try:
            member.role.load_episodes(saved)
        except UserError as error:
            _LOG.warning("%s begins new episodes: %s", who, error)
            self._lost_track |= node.follows_episodes
            return self._begun_anew(member)
        return member

    def _begun_anew(self, member: Member) -> Member:
        """The same in new episodes; with its seeds it would play the run's first again."""
        member.role.close()
        return self._member(member.node.name, member.replica, exact=False)

    def _member(self, name: str, replica: int, *, exact: bool) -> Member:
        job = self.job
        return build_member(
            self.wired,
            job.plan,
            self.program.node(name),
            replica,
            run=job.run.path,
            start_steps=job.resume.steps if job.resume is not None else 0,
            exact=exact,
            stopping=self._stop_evaluating,
            leaving=self._leaving,
        )

    def _leaving(self) -> bool:
        """Whether the run is about to end."""
        return self.interrupt.requested or self.over.is_set()

    def _stop_evaluating(self) -> Stop | None:
        """Why whoever plays whole episodes in this thread should leave off."""
        if self.no_time_to_evaluate():
            return Stop("stopped", "the time limit has passed")
        return self.interrupt.stopping()

    def parts(self) -> dict[str, State]:
        """Where those are in their episodes that act, if they take turns."""
        if self.job.plan.concurrent:
            return {}
        playing = [each for each in (*self.others, self.owner) if each.node.in_episodes]
        saved = {
            episodes_part(each.replica, each.node.episodes_of): each.role.save_episodes()
            for each in playing
        }
        followers = [each for each in playing if each.node.follows_episodes]
        if any(saved[episodes_part(f.replica, f.node.episodes_of)] is None for f in followers):
            return {}  # whose episodes they are is known to neither alone
        return {name: state for name, state in saved.items() if state is not None}

    # ---- threads ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Whoever is not the owner begins."""
        for member in self.here:
            if member is not self.owner:
                member.role.start()
        for thread in self.threads:
            thread.start()

    def _run(self, member: Member) -> None:
        """A thread."""
        torch.set_num_threads(1)
        try:
            member.role.start()
            run_members([member], self._stop_thread)
            member.role.finish()
        except BaseException as error:
            self.failures.append((member, error))
            self.wakeups[self.owner.node.name][0].notify()

    def _stop_thread(self) -> Stop | None:
        return Stop("stopped", "the run is over") if self.over.is_set() else None

    def stopping(self) -> Stop | None:
        """Raise what a thread raised, and when one is stuck in its environment."""
        if self.failures:
            member, error = self.failures[0]
            if isinstance(error, UserError):
                raise type(error)(f"{member.name}: {error}") from error
            raise RunFailed(f"{member.name}: {type(error).__name__}: {error}") from error
        env = self.job.plan.config.env
        limit, begun = certain_secs(env.step_timeout_secs), self.attention.look()
        for member in self.others if self.threads else ():
            if secs_in_env(member.heartbeat.cells, begun) > limit:
                which = f"of {member.name}"
                raise hung(env.id, which, "a step or reset", env.step_timeout_secs)
        return self.interrupt.stopping()

    def stop_acting(self) -> None:
        """Nobody who takes turns acts any more."""
        if not self.threads:
            for member in self.others:
                if member.node.has_envs:
                    member.role.finish()

    def end(self, timeout_secs: float) -> None:
        """Let every thread end what it does. Safe to call twice."""
        if self.over.is_set():
            return
        self.over.set()
        for wakeups in self.wakeups.values():
            for wakeup in wakeups:
                wakeup.notify()
        deadline = time.monotonic() + timeout_secs
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0.0))
        if not self.threads:
            for member in self.others:
                if not member.node.has_envs:
                    member.role.finish()

    def close(self) -> None:
        """Close environments, unless a thread is still in them."""
        self.end(HURRY_SECS)
        stuck = [thread.name for thread in self.threads if thread.is_alive()]
        if stuck:
            names = ", ".join(stuck)
            _LOG.warning("%s did not end in time; threads end with this process", names)
            return
        for member in (*self.others, self.owner):
            member.role.close()
        for wakeups in self.wakeups.values():
            for wakeup in wakeups:
                if isinstance(wakeup, EventFd):
                    wakeup.close()


def _wakeup(concurrent: bool) -> Wakeup:
    return EventFd.create() if concurrent else InTurn()
