"""The loop of the role that only formation ``replay`` has."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from rookery.engines.keeper import Order, read_order
from rookery.engines.replay_wiring import ReplayWiring
from rookery.engines.replayed import (
    build_replay,
    checkpoint_steps,
    replay_configs,
)
from rookery.replay.store import ReplayStore
from rookery.roles.replay import Replay
from rookery.roles.replay_server import ReplayServer
from rookery.runs.directory import RunDirectory
from rookery.transport.control import Control, Listener

_LOG = logging.getLogger(__name__)
POLL_SECS = 0.2
TELL_SECS = 0.5


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
        learner_bell=wiring.learner_bell,
    )
    _restore(replay, store, order)
    server.begin_at(order["start_steps"])
    control.send("started")
    told = 0.0
    while True:
        for message in listener.take():
            if message["kind"] == "stop":
                return
            if message["kind"] == "snapshot" and store is not None:
                _save(replay, store, run, message["steps"])
        if not server.serve():
            wiring.replay_bell.wait(POLL_SECS)
        if time.monotonic() - told > TELL_SECS:
            told = time.monotonic()
            wiring.replay_metrics[:] = list(replay.metrics().values())


def _restore(replay: Replay, store: ReplayStore | None, order: Order) -> None:
    """Go on from the newest snapshot there is, and say what is lost."""
    life, begun = order["life"], order["start_steps"]
    if not life and not begun:
        return
    found = store.available() if store is not None else []
    # A fleet that goes back to a checkpoint does not know what came after it.
    found = [steps for steps in found if life or steps <= begun]
    if store is None or not found:
        _LOG.warning("no snapshot of the replay: it is filled anew before learning goes on")
        return
    replay.load(store, found[-1])
    _LOG.warning(
        "replay goes on with %d steps from its snapshot at step %d; what was put after it is lost",
        replay.table.num_steps,
        found[-1],
    )


def _save(replay: Replay, store: ReplayStore, run: RunDirectory, steps: int) -> None:
    begun = time.monotonic()
    replay.save(store, steps, keep=checkpoint_steps(run.checkpoints))
    _LOG.info(
        "snapshot at step %d: %.1f MB in %.2f s",
        steps,
        store.written_bytes / 1e6,
        time.monotonic() - begun,
    )
