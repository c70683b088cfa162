"""The loop of each role in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from rookery.core.group import Group
from rookery.core.signature import Signature
from rookery.engines.async_wiring import AsyncWiring
from rookery.engines.group_wiring import GroupWiring
from rookery.engines.hogwild_roles import keep, work_without_lock
from rookery.engines.hogwild_wiring import HogwildWiring
from rookery.engines.keeper import Keeper, Order, read_order, restore_learner
from rookery.engines.replay_roles import hold, learn_from_replay
from rookery.engines.replay_wiring import ReplayWiring
from rookery.engines.together import build_together
from rookery.engines.waiting import POLL_SECS, Hunger, fleet_shares
from rookery.engines.wiring import Wiring
from rookery.programs.formations import AllreduceConfig
from rookery.roles.build import build_policy
from rookery.roles.evaluator import evaluate_config
from rookery.roles.learner import load_weights
from rookery.roles.pulse import Pulse, shares
from rookery.roles.worker import Worker
from rookery.runs.config import RunConfig
from rookery.runs.find import load_checkpoint
from rookery.transport.control import Control, Listener

_LOG = logging.getLogger(__name__)

GO_ON = np.ones(1)


AnyWiring = Wiring | GroupWiring | HogwildWiring | ReplayWiring
_WIRINGS: dict[str, type[AnyWiring]] = {
    "allreduce": GroupWiring,
    "async": AsyncWiring,
    "hogwild": HogwildWiring,
    "replay": ReplayWiring,
    "sync": Wiring,
}


def wiring_of(config: RunConfig) -> type[AnyWiring]:
    """What the processes of the configured formation share."""
    return _WIRINGS[config.formation]


def _attach(order: Order, config: RunConfig, signature: Signature) -> Wiring:
    """What actors and a learner share."""
    wiring = wiring_of(config).attach(config, signature, order["fds"])
    assert isinstance(wiring, Wiring)
    return wiring


def act(order: Order, control: Control, listener: Listener) -> None:
    """An actor's process."""
    config, signature = read_order(order)
    wiring = _attach(order, config, signature)
    actor = wiring.build_actor(
        signature, order["replica"], life=order["life"], start_steps=order["start_steps"]
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
    config, signature = read_order(order)
    wiring = _attach(order, config, signature)
    learner, source = wiring.build_learner(signature)
    fleet = partial(fleet_shares, wiring, learner)
    keeper = Keeper(order, config, learner, control, listener, fleet)
    keeper.begin()
    hunger = Hunger()
    with keeper:
        while keeper.go_on():
            if learner.ready():
                keeper.note(learner.step())
                hunger.over()
            else:
                learner.wait(POLL_SECS)
                hunger.complain(source.missing())
        keeper.conclude()
    keeper.report()


def work(order: Order, control: Control, listener: Listener) -> None:
    """A worker's process; the first one keeps the session, the others do what it does."""
    config, signature = read_order(order)
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


def _group(wiring: GroupWiring) -> dict[str, float]:
    """Who waits for whom; the slowest worker is the one that waits least."""
    waits = [shares(cells)["wait"] for cells in wiring.acting_pulses()]
    return wiring.shares("worker") | {"fleet/slowest_worker": waits.index(min(waits))}


def judge(order: Order, control: Control, listener: Listener) -> None:
    """The evaluator's process: scores the checkpoints it is told of."""
    config, signature = read_order(order)
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


Loop = Callable[[Order, Control, Listener], None]

LOOPS: dict[str, dict[str, Loop]] = {
    "sync": {"actor": act, "learner": learn, "evaluator": judge},
    "allreduce": {"worker": work, "evaluator": judge},
    "async": {"actor": act, "learner": learn, "evaluator": judge},
    "replay": {"actor": act, "replay": hold, "learner": learn_from_replay, "evaluator": judge},
    "hogwild": {"worker": work_without_lock, "keeper": keep, "evaluator": judge},
}
"""The loop of each role of each formation."""
