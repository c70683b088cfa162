"""The loops of a hogwild worker and of the keeper beside them, each in a process of its own."""

from __future__ import annotations

import logging
import time
from functools import partial

from rookery.core.patience import Patience
from rookery.engines.hogwild_wiring import HogwildWiring, Replica, on_worker
from rookery.engines.keeper import Keeper, Order, read_order
from rookery.engines.together import build_together
from rookery.params.hogwild import ENDED, GOING, OVER, PREPARING, STEPS, HogwildMemory
from rookery.roles.hogwild import Holder, Tally
from rookery.roles.pulse import Pulse
from rookery.transport.control import Control, Listener

_LOG = logging.getLogger(__name__)

LOOK_SECS = 0.05
"""How often the keeper looks."""
END_SECS = 10.0
"""How long it waits for the workers' last updates."""


def work_without_lock(order: Order, control: Control, listener: Listener) -> None:
    """A worker: acts, learns and writes to what all share, until it is over."""
    config, signature = read_order(order)
    worker = order["replica"]
    wiring = HogwildWiring.attach(config, signature, order["fds"])
    memory, pulse = wiring.memory(), Pulse(wiring.acting_pulse(worker))
    control.send("started")
    while memory.state == PREPARING:
        message = listener.wait(LOOK_SECS)
        if message is not None and message["kind"] == "stop":
            return
    memory.ledger[worker, ENDED] = 0
    actors, learner = build_together(
        on_worker(config, worker),
        signature,
        [worker],
        start_steps=lambda replica: order["start_steps"],
        life=order["life"],
        group=Replica(worker),
        pulse=pulse,
        build=partial(wiring.build_worker_learner, worker=worker),
    )
    learner.start()
    if learner.steps:  # resumed, or in the place of one that was killed: no minibatch twice
        learner.vary(config.seed)
    try:
        while memory.state == GOING and memory.total(STEPS) < config.total_steps:
            while actors[0].ready():
                actors[0].step()
            learner.step()
    finally:
        memory.ledger[worker, ENDED] = 1
        actors[0].close()


def keep(order: Order, control: Control, listener: Listener) -> None:
    """The keeper: puts the weights there, counts, logs and saves, and says when it is over."""
    config, signature = read_order(order)
    wiring = HogwildWiring.attach(config, signature, order["fds"])
    memory, holder = wiring.memory(), wiring.build_holder(signature)
    tally = Tally(memory, wiring.rings(), config.metrics.info_keys)
    keeper = Keeper(order, config, holder, control, listener, lambda: wiring.shares("worker"))
    keeper.begin()
    with keeper:
        while keeper.go_on():
            _note(keeper, holder, tally)
            time.sleep(LOOK_SECS)
        memory.state = OVER
        await_ends(memory, "workers")
        _note(keeper, holder, tally)
        keeper.conclude()
    keeper.report()


def _note(keeper: Keeper, holder: Holder, tally: Tally) -> None:
    update = tally.take()
    if update is not None:
        holder.note(update)
        if keeper.session.config.metrics.histograms:
            holder.refresh()
        keeper.note(update)


def await_ends(memory: HogwildMemory, who: str) -> None:
    """So that the last checkpoint has every step that was made."""
    patience = Patience(END_SECS)
    while not memory.ledger[:-1, ENDED].all():
        if patience.over():
            late = (memory.ledger[:-1, ENDED] == 0).nonzero()[0].tolist()
            _LOG.warning("%s %s did not end within %.0f s", who, late, END_SECS)
            return
        time.sleep(LOOK_SECS / 5)
