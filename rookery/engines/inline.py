"""Every role in one thread, in turn: deterministic, and the ground truth for the other engines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.engines.carries import carries
from rookery.engines.engine import Finish, Job
from rookery.engines.inherited import bequest_of, bequest_part, inherit
from rookery.engines.interrupt import Interrupt
from rookery.engines.queued import build_queued
from rookery.engines.replayed import WithReplay, build_replayed
from rookery.engines.together import build_together
from rookery.programs.formations import AsyncConfig, ReplayConfig, build_program
from rookery.programs.validate import validate
from rookery.roles.actor import Actor
from rookery.roles.async_learner import AsyncLearner
from rookery.roles.build import build_policy, compute_threads
from rookery.roles.build import probe as probe_env
from rookery.roles.evaluator import evaluate_config
from rookery.roles.explorer import Explorer
from rookery.roles.learner import Learner, load_weights
from rookery.roles.pulse import shares
from rookery.roles.replay_learner import ReplayLearner
from rookery.runs.checkpoint_files import State
from rookery.runs.config import RunConfig
from rookery.runs.session import Session

_LOG = logging.getLogger(__name__)

Actors = Sequence[Actor | Explorer]
AnyLearner = Learner | ReplayLearner


def run(job: Job) -> Finish:
    """Carry the job's program to its end."""
    program = build_program(job.config)
    validate(program, "inline", carries("inline"))
    learns = "learner" if program.has("learner") else "worker"
    with compute_threads(program.node(learns).num_threads):
        return _run(job)


def _run(job: Job) -> Finish:
    config = job.config
    signature = job.signature or probe_env(config.env, config.seed)
    formation = config.formation_config
    if isinstance(formation, AsyncConfig) and formation.threads:
        from rookery.engines.threaded import run as run_threads

        return run_threads(job, signature)
    actors, learner = _where_they_were(job, signature)
    turns = _Turns(config)
    session = Session(
        config,
        job.run,
        job.callbacks,
        fleet=lambda: _fleet(actors, learner, turns),
        policy=learner.policy,
        beside=learner.save_replay if isinstance(learner, WithReplay) else None,
    )
    try:
        restore(job, learner, session)
        if job.resume is not None and isinstance(learner, WithReplay):
            learner.leave_episodes(actor for actor in actors if isinstance(actor, Explorer))
        with Interrupt() as interrupt:
            _loop(actors, learner, session, interrupt, turns)
            session.finish(lambda: _parts(actors, learner))
            evaluate_pending(session, learner, interrupt, turns.evaluator)
            if interrupt.requested:
                session.stop("interrupted", interrupt.reason)
    finally:
        session.close()
        for actor in actors:
            actor.close()
    return finish_of(session)


def finish_of(session: Session) -> Finish:
    """How a session that is over ended."""
    assert session.outcome is not None
    return Finish(
        session.outcome,
        session.steps,
        session.updates,
        session.wall_secs,
        extra={"reached_at": session.reached_at},
    )


class _Turns:
    """How long each role had its turn: in one thread, whoever has not waits."""

    def __init__(self, config: RunConfig) -> None:
        self.started = time.monotonic()
        self.secs = {"actor": 0.0, "learner": 0.0}
        if config.eval.episodes:
            self.secs["evaluator"] = 0.0

    @contextmanager
    def of(self, role: str) -> Iterator[None]:
        """The turn of ``role``."""
        begun = time.monotonic()
        yield
        self.secs[role] = self.secs.get(role, 0.0) + time.monotonic() - begun

    def evaluator(self) -> AbstractContextManager[None]:
        """The evaluator's turn."""
        return self.of("evaluator")

    def wait_shares(self, num_actors: int) -> dict[str, float]:
        """Share of the time that each role had to wait for the others; of actors the mean."""
        life = max(time.monotonic() - self.started, 1e-9)
        busy = self.secs | {"actor": self.secs["actor"] / num_actors}
        return {f"fleet/{role}_wait_share": 1 - secs / life for role, secs in busy.items()}


def _loop(
    actors: Actors,
    learner: AnyLearner,
    session: Session,
    interrupt: Interrupt,
    turns: _Turns,
) -> None:
    """Roles in turn until the session says that it is over."""
    learner.start()
    session.begin(learner.save_state)
    evaluate_pending(session, learner, interrupt, turns.evaluator)
    while session.outcome is None:
        with turns.of("actor"):
            _act(actors, learner, session, interrupt)
        if not learner.ready():
            if not any(actor.ready() for actor in actors):
                raise RuntimeError("no role can go on: the program is not wired as a cycle")
            continue
        with turns.of("learner"):
            update = learner.step()
        session.after_update(update, lambda: _parts(actors, learner))
        evaluate_pending(session, learner, interrupt, turns.evaluator)
        if interrupt.requested:
            session.stop("interrupted", interrupt.reason)


def _act(actors: Actors, learner: AnyLearner, session: Session, interrupt: Interrupt) -> None:
    """Each actor in turn, again and again until none may go on; with replay, which may take steps
    for ever, until there is a batch."""
    going = True
    while going:
        going = False
        for actor in actors:
            if session.outcome is not None or not actor.ready():
                continue
            actor.step()
            going = True
            if isinstance(learner, ReplayLearner) and learner.source.filling():
                _fill(learner, session, interrupt)
        if isinstance(learner, ReplayLearner) and learner.ready():
            return


def _fill(learner: ReplayLearner, session: Session, interrupt: Interrupt) -> None:
    """Replay takes many steps before the first is learned from; the run may end meanwhile."""
    session.fill(learner.count_steps())
    if interrupt.requested:
        session.stop("interrupted", interrupt.reason)


def _where_they_were(job: Job, signature: Signature) -> tuple[Actors, AnyLearner]:
    """Actors in the episodes that the checkpoint knows, or in new ones; and their learner."""
    anew: set[int] = set()
    while True:
        actors, learner = _build(job, signature, anew)
        unfit = _load_actors(job, actors, anew)
        if not unfit:
            return actors, learner
        # With their seeds they would play the run's first episodes again.
        for actor in actors:
            actor.close()
        anew |= unfit


def _load_actors(job: Job, actors: Actors, anew: set[int]) -> set[int]:
    """Put all but those who begin ``anew`` where they were; those for whom that does not work."""
    unfit: set[int] = set()
    if job.resume is None:
        return unfit
    parts = job.resume.parts
    for replica, actor in enumerate(actors):
        if replica not in anew:
            why = "the checkpoint has no state for it"
            if (part := f"actor-{replica}") in parts:
                try:
                    actor.load_state(parts[part])
                    continue
                except UserError as error:
                    why = str(error)
                    unfit.add(replica)
            _LOG.warning("actor-%d begins new episodes: %s", replica, why)
        left = bequest_of(parts, replica)
        if left and replica not in unfit and isinstance(actor, Explorer):
            inherit(actor, replica, left)
    return unfit


def _build(job: Job, signature: Signature, anew: set[int]) -> tuple[Actors, AnyLearner]:
    """All roles; actors ``anew`` have streams of their own."""

    def start_steps(replica: int) -> int:
        return _new_start(job, replica, anew)

    formation = job.config.formation_config
    if isinstance(formation, AsyncConfig):
        return build_queued(job.config, signature, start_steps=start_steps)
    if isinstance(formation, ReplayConfig):
        return build_replayed(job.config, signature, job.run, start_steps=start_steps)
    replicas = range(formation.actors_in_batch)
    return build_together(job.config, signature, replicas, start_steps=start_steps)


def _new_start(job: Job, replica: int, anew: set[int]) -> int:
    """Where an actor begins new episodes: at a resumed checkpoint whose state is not for it."""
    if job.resume is None or (f"actor-{replica}" in job.resume.parts and replica not in anew):
        return 0
    return job.resume.steps


def restore(job: Job, learner: AnyLearner, session: Session) -> None:
    """Begin where the job says: at a checkpoint, with given weights, or new."""
    if job.init_from is not None:
        load_weights(learner.policy, job.init_from.parts["weights"])
    if job.resume is None:
        return
    parts = job.resume.parts
    learner.load_state(parts)
    session.load_state(parts["session"], steps=learner.steps, updates=learner.updates)


def _parts(actors: Actors, learner: AnyLearner) -> dict[str, State]:
    """What a checkpoint holds: the learner, and where each actor is in its episodes."""
    parts, left = learner.save_state(), {}
    for replica, actor in enumerate(actors):
        saved = actor.save_state()
        if saved is not None:
            parts[f"actor-{replica}"] = saved
        elif isinstance(actor, Explorer):
            left[replica] = actor.bequest()
    return parts | bequest_part(left)


def evaluate_pending(
    session: Session,
    learner: AnyLearner,
    interrupt: Interrupt,
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Score what was saved for it; each within a ``turn`` of the evaluator."""
    for steps in session.evaluations_due():
        weights = session.store.load(steps, parts=["weights"]).parts["weights"]
        policy = build_policy(session.config, learner.policy.signature)
        load_weights(policy, weights)
        with turn():
            result = evaluate_config(
                session.config, policy, should_stop=lambda: interrupt.requested
            )
        if result is None:
            return
        session.on_evaluation(steps, result.summary())


def _fleet(actors: Actors, learner: AnyLearner, turns: _Turns) -> dict[str, float]:
    """Where the time goes."""
    env = sum(shares(actor.pulse.cells)["env"] for actor in actors)
    fleet = {"fleet/actors": len(actors), "fleet/env_share": env}
    if isinstance(learner, AsyncLearner):
        fleet |= learner.queue_source.queue.metrics()
    if isinstance(learner, WithReplay):
        fleet |= learner.replay.metrics()
    return fleet | turns.wait_shares(len(actors))
