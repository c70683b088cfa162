"""The loop of each role in a process of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rookery.cli.settings import config_from_tree
from rookery.core.signature import Signature
from rookery.engines.wiring import RESTARTS, Wiring
from rookery.roles.build import build_actor, build_learner, build_policy
from rookery.roles.evaluator import evaluate_config
from rookery.roles.learner import Learner, load_weights
from rookery.roles.pulse import START, Pulse, shares
from rookery.runs.checkpoint import load_checkpoint
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.runs.metrics import cut
from rookery.runs.session import Callbacks, Session
from rookery.runs.start import starting_weights
from rookery.transport.control import Control, Listener

_LOG = logging.getLogger(__name__)

POLL_SECS = 0.2
COMPLAIN_SECS = 30.0
EVALUATION_TIMEOUT_SECS = 3600.0

Order = dict[str, Any]


def _read(order: Order) -> tuple[RunConfig, Signature]:
    torch.set_num_threads(order["num_threads"])
    return config_from_tree(order["config"]), Signature.from_json(order["signature"])


def act(order: Order, control: Control, listener: Listener) -> None:
    """An actor's process."""
    config, signature = _read(order)
    wiring = Wiring.attach(config, signature, order["fds"])
    actor = build_actor(
        config,
        signature,
        order["replica"],
        sink=wiring.sink(order["replica"]),
        params=wiring.params(),
        life=order["life"],
        start_steps=order["start_steps"],
        pulse=Pulse(wiring.actor_pulse(order["replica"])),
    )
    control.send("started")
    try:
        while not any(message["kind"] == "stop" for message in listener.take()):
            if actor.ready():
                actor.step()
            else:
                actor.wait(POLL_SECS)
    finally:
        actor.close()


def learn(order: Order, control: Control, listener: Listener) -> None:
    """The learner's process: it also keeps the session, so logs and checkpoints are its own."""
    config, signature = _read(order)
    wiring = Wiring.attach(config, signature, order["fds"])
    source = wiring.source()
    learner = build_learner(config, signature, source=source, params=wiring.params())
    run = RunDirectory.open(Path(order["run"]))
    session = Session(
        config, run, _callbacks(order, control), fleet=lambda: _fleet(wiring, learner)
    )
    _restore(order, learner, session)
    requested: set[int] = set()
    control.send("started")
    learner.start()
    session.begin(learner.save_state)
    waited = time.monotonic()
    try:
        while session.outcome is None:
            _hear(session, listener)
            _request(session, control, requested)
            if learner.ready():
                session.after_update(learner.step(), learner.save_state)
                waited = time.monotonic()
            else:
                learner.wait(POLL_SECS)
                waited = _complain(waited, source.missing())
        session.finish(learner.save_state)
        _await_evaluations(session, control, listener, requested)
    finally:
        session.close()
    outcome = session.outcome
    control.send(
        "outcome",
        state=outcome.state,
        reason=outcome.reason,
        steps=session.steps,
        updates=session.updates,
        wall_secs=session.wall_secs,
        reached_at=session.reached_at,
    )


def _callbacks(order: Order, control: Control) -> Callbacks:
    """Tell the driver what happens; the user's own callbacks run there."""

    def episode(record: dict[str, Any]) -> None:
        control.send("episode", record=record)

    def record(record: dict[str, Any]) -> None:
        control.send("record", record=record)

    return Callbacks(on_episode=episode if order["tell_episodes"] else None, on_record=[record])


def _restore(order: Order, learner: Learner, session: Session) -> None:
    if order["resume"] is not None:
        checkpoint = load_checkpoint(Path(order["resume"]))
        learner.load_state(checkpoint.parts)
        session.load_state(
            checkpoint.parts["session"], steps=learner.steps, updates=learner.updates
        )
        _LOG.info("going on from step %d", learner.steps)
        return
    if session.run.metrics_path.exists():
        cut(session.run.metrics_path, 0)
    if order["init_from"] is not None:
        start = starting_weights(Path(order["init_from"]))
        load_weights(learner.policy, start.parts["weights"])


def _hear(session: Session, listener: Listener) -> None:
    for message in listener.take():
        if message["kind"] == "stop":
            session.stop(message["state"], message["reason"])
        elif message["kind"] == "evaluation" and message["steps"] in session.pending:
            session.on_evaluation(message["steps"], message["summary"])


def _request(session: Session, control: Control, requested: set[int]) -> None:
    for steps in session.evaluations_due():
        if steps not in requested:
            requested.add(steps)
            control.send("evaluate", steps=steps)


def _await_evaluations(
    session: Session, control: Control, listener: Listener, requested: set[int]
) -> None:
    """A run that came to its end waits for the scores of what it saved; an interrupted one not."""
    deadline = time.monotonic() + EVALUATION_TIMEOUT_SECS
    while session.pending and session.outcome and session.outcome.state != "interrupted":
        _request(session, control, requested)
        _hear(session, listener)
        if time.monotonic() > deadline:
            _LOG.warning("gave up waiting for the evaluator after %.0f s", EVALUATION_TIMEOUT_SECS)
            return
        time.sleep(0.02)


def _complain(waited: float, missing: list[int]) -> float:
    moment = time.monotonic()
    if moment - waited < COMPLAIN_SECS:
        return waited
    names = ", ".join(f"actor-{actor}" for actor in missing)
    _LOG.warning("waiting for rollouts of %s for %.0f s", names, moment - waited)
    return moment


def _fleet(wiring: Wiring, learner: Learner) -> dict[str, float]:
    """Who waits for whom: the bottleneck of the fleet."""
    rows = [shares(cells) for cells in wiring.actor_pulses()]
    fleet = {
        "fleet/actors": len(rows),
        "fleet/actor_env_share": sum(row["env"] for row in rows) / len(rows),
        "fleet/actor_wait_share": sum(row["wait"] for row in rows) / len(rows),
        "fleet/learner_wait_share": shares(learner.pulse.cells)["wait"],
        "fleet/restarts": int(wiring.counters[RESTARTS]),
    }
    evaluator = wiring.evaluator_pulse()
    if evaluator[START]:
        fleet["fleet/evaluator_wait_share"] = shares(evaluator)["wait"]
    return fleet


def judge(order: Order, control: Control, listener: Listener) -> None:
    """The evaluator's process: scores the checkpoints it is told of."""
    config, signature = _read(order)
    pulse = Pulse(Wiring.attach(config, signature, order["fds"]).evaluator_pulse())
    store = Path(order["run"])
    control.send("started")
    while True:
        with pulse.waiting():
            message = listener.wait(timeout_secs=POLL_SECS)
        if message is None:
            continue
        if message["kind"] == "stop":
            return
        checkpoint = load_checkpoint(store, str(message["steps"]), parts=["weights"])
        policy = build_policy(config, signature)
        load_weights(policy, checkpoint.parts["weights"])
        result = evaluate_config(config, policy)
        assert result is not None
        control.send("evaluation", steps=message["steps"], summary=result.summary())


LOOPS: dict[str, Callable[[Order, Control, Listener], None]] = {
    "actor": act,
    "learner": learn,
    "evaluator": judge,
}
