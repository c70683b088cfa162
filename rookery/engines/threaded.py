"""Formation ``async`` in one process: the learner in the main thread, each actor in its own.

Torch and environments in C++ let go of Python's lock while they compute, so threads run side by
side there. Weights are copied as between processes, so nobody acts with half an update.
"""

from __future__ import annotations

import logging
import threading
import time

import torch

from rookery.core.errors import RunFailed, UserError
from rookery.core.patience import Attention
from rookery.core.signature import Signature
from rookery.core.spec import zeros
from rookery.engines.engine import Finish, Job
from rookery.engines.inline import evaluate_pending, finish_of, restore
from rookery.engines.interrupt import Interrupt
from rookery.engines.queued import async_config, build_async_learner, plain_queue, queue_source
from rookery.engines.waiting import POLL_SECS, Hunger
from rookery.envs.faults import hung
from rookery.envs.timeout import certain_secs
from rookery.params.flat import FlatParams
from rookery.params.shared_memory import SharedParams, param_specs
from rookery.roles.actor import Actor
from rookery.roles.build import build_actor, build_policy
from rookery.roles.pulse import secs_in_env, shares
from rookery.runs.session import Session
from rookery.transport.queue import QueueSink
from rookery.transport.wake import Wake

_LOG = logging.getLogger(__name__)

END_SECS = 30.0
"""How long actors may take to end their rollouts when the run is over."""
HURRY_SECS = 5.0
"""The same when it failed."""


def run(job: Job, signature: Signature) -> Finish:
    """Carry the job's program to its end."""
    crew = _Crew(job, signature)
    learner = crew.learner
    session = Session(job.config, job.run, job.callbacks, fleet=crew.metrics, policy=learner.policy)
    try:
        restore(job, learner, session)
        with Interrupt() as interrupt:
            learner.start()
            session.begin(learner.save_state)
            crew.start()
            hunger = Hunger()
            while session.outcome is None:
                crew.check()
                if learner.ready():
                    session.after_update(learner.step(), learner.save_state)
                    evaluate_pending(session, learner, interrupt)
                    hunger.over()
                else:
                    learner.wait(POLL_SECS)
                    hunger.complain(crew.source.missing())
                if interrupt.requested:
                    session.stop("interrupted", interrupt.reason)
            crew.end(END_SECS)
            session.finish(learner.save_state)
            evaluate_pending(session, learner, interrupt)
            if interrupt.requested:
                session.stop("interrupted", interrupt.reason)
    finally:
        crew.end(HURRY_SECS)
        session.close()
    return finish_of(session)


class _Crew:
    """The learner, its actors and their threads."""

    def __init__(self, job: Job, signature: Signature) -> None:
        config = job.config
        count = async_config(config).num_actors
        self.bell, self.bells = Wake.create(), [Wake.create() for _ in range(count)]
        self.queue = plain_queue(config, signature)
        weights = zeros(param_specs(FlatParams(build_policy(config, signature)).tensors()))
        self.source = queue_source(config, signature, self.queue, own=self.bell, others=self.bells)
        self.learner = build_async_learner(
            config, signature, source=self.source, params=SharedParams(weights)
        )
        self.actors = [
            build_actor(
                config,
                signature,
                replica,
                sink=QueueSink(self.queue, replica, own=self.bells[replica], other=self.bell),
                params=SharedParams(weights),
                start_steps=job.resume.steps if job.resume is not None else 0,
            )
            for replica in range(count)
        ]
        self.threads = [
            threading.Thread(
                target=self._act, args=(replica, actor), name=f"actor-{replica}", daemon=True
            )
            for replica, actor in enumerate(self.actors)
        ]
        self.over = threading.Event()
        self.failures: list[tuple[int, BaseException]] = []
        self.env, self.attention = config.env, Attention()

    def start(self) -> None:
        """Begin to act."""
        for thread in self.threads:
            thread.start()

    def _act(self, replica: int, actor: Actor) -> None:
        """An actor's thread."""
        torch.set_num_threads(1)
        try:
            while not self.over.is_set():
                if actor.ready():
                    actor.step()
                else:
                    actor.wait(POLL_SECS)
        except BaseException as error:
            self.failures.append((replica, error))
            self.bell.ring()

    def check(self) -> None:
        """Raise what an actor raised, and when one is stuck in its environment."""
        if self.failures:
            replica, error = self.failures[0]
            if isinstance(error, UserError):
                raise type(error)(f"actor-{replica}: {error}") from error
            raise RunFailed(f"actor-{replica}: {type(error).__name__}: {error}") from error
        secs, begun = self.env.step_timeout_secs, self.attention.look()
        for replica, actor in enumerate(self.actors):
            if secs_in_env(actor.pulse.cells, begun) > certain_secs(secs):
                raise hung(self.env.id, f"of actor-{replica}", "a step or reset", secs)

    def end(self, timeout_secs: float) -> None:
        """Let every actor end its rollout, and close its environments. Safe to call twice."""
        if self.over.is_set():
            return
        self.over.set()
        for bell in self.bells:
            bell.ring()
        deadline = time.monotonic() + timeout_secs
        for thread in self.threads:
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0.0))
        stuck = [thread.name for thread in self.threads if thread.is_alive()]
        if stuck:
            names = ", ".join(stuck)
            _LOG.warning("%s did not end in time; threads end with this process", names)
            return
        for actor in self.actors:
            actor.close()
        for bell in (self.bell, *self.bells):
            bell.close()

    def metrics(self) -> dict[str, float]:
        """Where the time goes, and how many rollouts were put, taken, refused and learned."""
        rows = [shares(actor.pulse.cells) for actor in self.actors]
        return {
            "fleet/actors": len(rows),
            "fleet/actor_env_share": sum(row["env"] for row in rows) / len(rows),
            "fleet/actor_wait_share": sum(row["wait"] for row in rows) / len(rows),
            "fleet/learner_wait_share": shares(self.learner.pulse.cells)["wait"],
            **self.queue.metrics(),
        }
