"""The loops of the roles of formation ``replay``: replay, and learners in lockstep or apart."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

import numpy as np

from rookery.engines.hogwild_roles import await_ends
from rookery.engines.keeper import Keeper, Order, read_order, restore_learner
from rookery.engines.replay_wiring import ReplayWiring
from rookery.engines.replayed import (
    build_replay,
    checkpoint_steps,
    replay_configs,
)
from rookery.engines.waiting import POLL_SECS, Hunger, fleet_shares
from rookery.params import hogwild
from rookery.replay.store import ReplayStore
from rookery.roles.free_learner import FreeLearner
from rookery.roles.replay import Replay
from rookery.roles.replay_learner import ReplayLearner
from rookery.roles.replay_server import ReplayServer
from rookery.runs.directory import RunDirectory
from rookery.transport.control import Control, Listener
from rookery.transport.sample_slots import SlotSource

_LOG = logging.getLogger(__name__)
TELL_SECS = 0.5
OVER, LEARN, WAIT = (np.array([word]) for word in range(3))
"""What the first learner tells the others: all do as it does."""


def hold(order: Order, control: Control, listener: Listener) -> None:
    """The replay process."""
    config, signature = read_order(order)
    formation, _ = replay_configs(config)
    wiring = ReplayWiring.attach(config, signature, order["fds"])
    replay, run = build_replay(config, signature), RunDirectory.open(Path(order["run"]))
    store = ReplayStore(run.replay) if formation.save_replay else None
    server = ReplayServer(
        replay,
        wiring.step_source(),
        wiring.slots(),
        life=order["life"],
        learner_bells=wiring.sample_bells,
        apart=wiring.apart,
    )
    if (loss := _restore(replay, store, order, taken=int(server.steps[0]))) is not None:
        _LOG.warning(loss)
        control.send("warning", text=loss)
    server.begin_at(order["start_steps"])
    control.send("started")
    told = 0.0
    while True:
        for message in listener.take():
            if message["kind"] == "stop":
                return
            if message["kind"] == "snapshot" and store is not None:
                _save(replay, store, run, message["steps"])
                control.send("saved", steps=message["steps"])
        if not server.serve():
            wiring.replay_bell.wait(POLL_SECS)
        if time.monotonic() - told > TELL_SECS:
            told = time.monotonic()
            wiring.replay_metrics[:] = list(replay.metrics().values())


def learn_from_replay(order: Order, control: Control, listener: Listener) -> None:
    """A learner's process; the first one keeps the session."""
    config, signature = read_order(order)
    wiring = ReplayWiring.attach(config, signature, order["fds"])
    learner, source = wiring.build_learner(signature, order["replica"])
    if order["replica"] == 0:
        fleet = partial(fleet_shares, wiring, learner)
        bequests = wiring.save_bequests
        keeper = Keeper(order, config, learner, control, listener, fleet, bequests)
        keeper.begin()
        with keeper:
            if isinstance(learner, FreeLearner):
                _lead_apart(learner, source, keeper)
            else:
                _lead(learner, source, keeper)
            keeper.conclude()
        keeper.report()
        return
    restore_learner(order, learner)
    control.send("started")
    if isinstance(learner, FreeLearner):
        _follow_apart(learner, listener)
    else:
        learner.start()
        _follow(learner)


def _lead(learner: ReplayLearner, source: SlotSource, keeper: Keeper) -> None:
    """All learn as one: the others do what the first tells them."""
    group, hunger = learner.group, Hunger()
    while keeper.go_on():
        if learner.ready():
            group.first(LEARN)
            keeper.note(learner.step())
            hunger.over()
        else:
            learner.wait(POLL_SECS)
            group.first(WAIT)  # so that nobody waits in vain
            keeper.fill(learner)
            hunger.complain(source.missing())
    group.first(OVER)


def _follow(learner: ReplayLearner) -> None:
    while (word := learner.group.first(OVER)) != OVER:
        if word == LEARN:
            learner.step()


def _lead_apart(learner: FreeLearner, source: SlotSource, keeper: Keeper) -> None:
    """Each learns by itself; the others go on until the first has ended."""
    memory, hunger = learner.memory, Hunger()
    while keeper.go_on():
        if learner.ready():
            keeper.note(learner.step())
            hunger.over()
        else:
            learner.wait(POLL_SECS)
            keeper.fill(learner)
            hunger.complain(source.missing())
    memory.state = hogwild.OVER
    memory.ledger[learner.worker, hogwild.ENDED] = 1
    await_ends(memory, "learners")
    learner.catch_up()
    keeper.session.updates = learner.updates


def _follow_apart(learner: FreeLearner, listener: Listener) -> None:
    memory = learner.memory
    while memory.state == hogwild.PREPARING:
        message = listener.wait(POLL_SECS)
        if message is not None and message["kind"] == "stop":
            return
    learner.start()
    try:
        while memory.state == hogwild.GOING:
            if learner.ready():
                learner.step()
            else:
                learner.wait(POLL_SECS)
    finally:
        memory.ledger[learner.worker, hogwild.ENDED] = 1


def _restore(replay: Replay, store: ReplayStore | None, order: Order, taken: int) -> str | None:
    """Go on from the newest snapshot of this past; what to say if some of ``taken`` are lost."""
    begun = order["start_steps"]
    if not order["life"] and not begun:
        return None
    found = None if store is None else store.newest(until=begun, since=order["snapshots"])
    if store is None or found is None:
        return "no snapshot of the replay: it is filled anew before learning goes on"
    replay.load(store, found)
    where = f"{replay.table.num_steps:,} steps from its snapshot at step {found:,}"
    if (lost := max(taken, begun) - replay.steps) > 0:
        return f"replay goes on with {where}; the {lost:,} steps put after it are lost"
    _LOG.info("replay goes on with %s", where)
    return None


def _save(replay: Replay, store: ReplayStore, run: RunDirectory, steps: int) -> None:
    begun = time.monotonic()
    replay.save(store, steps, keep=checkpoint_steps(run.checkpoints))
    _LOG.info(
        "snapshot at step %d: %.1f MB in %.2f s",
        steps,
        store.written_bytes / 1e6,
        time.monotonic() - begun,
    )
