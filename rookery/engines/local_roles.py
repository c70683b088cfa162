"""The loop of each role in a process of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from rookery.cli.settings import config_from_tree
from rookery.core.group import Group
from rookery.core.signature import Signature
from rookery.engines.group_wiring import GroupWiring
from rookery.engines.keeper import Keeper, Order, restore_learner
from rookery.engines.together import build_together
from rookery.engines.wiring import RESTARTS, Wiring
from rookery.programs.formations import AllreduceConfig
from rookery.roles.build import build_actor, build_learner, build_policy
from rookery.roles.evaluator import evaluate_config
from rookery.roles.learner import Learner, load_weights
from rookery.roles.pulse import START, Pulse, shares
from rookery.roles.worker import Worker
from rookery.runs.checkpoint import load_checkpoint
from rookery.runs.config import RunConfig
from rookery.transport.control import Control, Listener

_LOG = logging.getLogger(__name__)

POLL_SECS = 0.2
COMPLAIN_SECS = 30.0
GO_ON = np.ones(1)


def wiring_of(config: RunConfig) -> type[Wiring] | type[GroupWiring]:
    """What the processes of the configured formation share."""
    return GroupWiring if config.formation == "allreduce" else Wiring


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
        pulse=Pulse(wiring.acting_pulse(order["replica"])),
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
    keeper = Keeper(order, config, learner, control, listener, lambda: _fleet(wiring, learner))
    keeper.begin()
    waited = time.monotonic()
    with keeper:
        while keeper.go_on():
            if learner.ready():
                keeper.note(learner.step())
                waited = time.monotonic()
            else:
                learner.wait(POLL_SECS)
                waited = _complain(waited, source.missing())
        keeper.conclude()
    keeper.report()


def work(order: Order, control: Control, listener: Listener) -> None:
    """A worker's process; the first one keeps the session, the others do what it does."""
    config, signature = _read(order)
    replica, formation = order["replica"], config.formation_config
    assert isinstance(formation, AllreduceConfig)
    wiring = GroupWiring.attach(config, signature, order["fds"])
    pulse = Pulse(wiring.acting_pulse(replica))
    group = wiring.group(replica, pulse)
    actors, learner = build_together(
        config,
        signature,
        [replica],
        start_steps=lambda replica: order["start_steps"],
        group=group,
        pulse=pulse,
    )
    worker = Worker(actors[0], learner, check_every=formation.check_every)
    try:
        if replica == 0:
            keeper = Keeper(order, config, learner, control, listener, lambda: _group(wiring))
            _lead(worker, group, keeper)
        else:
            restore_learner(order, learner)
            learner.vary(config.seed)
            control.send("started")
            learner.start()
            while group.first(GO_ON)[0]:
                worker.step()
    finally:
        worker.close()


def _lead(worker: Worker, group: Group, keeper: Keeper) -> None:
    """The first worker's loop: all step together until its session says that it is over."""
    keeper.begin()
    with keeper:
        while group.first(GO_ON * keeper.go_on())[0]:
            keeper.note(worker.step())
        keeper.conclude()
    keeper.report()


def _complain(waited: float, missing: list[int]) -> float:
    moment = time.monotonic()
    if moment - waited < COMPLAIN_SECS:
        return waited
    names = ", ".join(f"actor-{actor}" for actor in missing)
    _LOG.warning("waiting for rollouts of %s for %.0f s", names, moment - waited)
    return moment


def _fleet(wiring: Wiring, learner: Learner) -> dict[str, float]:
    """Who waits for whom: the bottleneck of the fleet."""
    rows = [shares(cells) for cells in wiring.acting_pulses()]
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


def _group(wiring: GroupWiring) -> dict[str, float]:
    """Who waits for whom; the slowest worker is the one that waits least."""
    rows = [shares(cells) for cells in wiring.acting_pulses()]
    waits = [row["wait"] for row in rows]
    fleet = {
        "fleet/workers": len(rows),
        "fleet/worker_env_share": sum(row["env"] for row in rows) / len(rows),
        "fleet/worker_wait_share": sum(waits) / len(rows),
        "fleet/slowest_worker": waits.index(min(waits)),
        "fleet/restarts": int(wiring.counters[RESTARTS]),
    }
    evaluator = wiring.evaluator_pulse()
    if evaluator[START]:
        fleet["fleet/evaluator_wait_share"] = shares(evaluator)["wait"]
    return fleet


def judge(order: Order, control: Control, listener: Listener) -> None:
    """The evaluator's process: scores the checkpoints it is told of."""
    config, signature = _read(order)
    pulse = Pulse(wiring_of(config).attach(config, signature, order["fds"]).evaluator_pulse())
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
    "worker": work,
    "evaluator": judge,
}
