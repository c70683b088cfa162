"""The session of a run, in the process that learns, and that process's talk with the driver.

::

    keeper.begin()
    with keeper:
        while keeper.go_on():
            keeper.note(learner.step())
        keeper.conclude()
    keeper.report()
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rookery.core.heap import keep_freed_memory
from rookery.core.patience import Patience
from rookery.core.signature import Signature
from rookery.engines.replayed import snapshot_part
from rookery.recipes.settings import config_from_tree
from rookery.roles.learner import Learner, Update, load_weights
from rookery.roles.replay_learner import ReplayLearner
from rookery.runs.checkpoint_files import Checkpoint, State
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import cut
from rookery.runs.session import Callbacks, Record, Session
from rookery.runs.start import starting_weights
from rookery.transport.control import Control, Listener

_LOG = logging.getLogger(__name__)

EVALUATION_TIMEOUT_SECS = 3600.0

Order = dict[str, Any]
"""What the driver asks a process to be."""


def read_order(order: Order) -> tuple[RunConfig, Signature]:
    """Settings and signature of the run; sets this process's compute threads and memory."""
    keep_freed_memory()
    torch.set_num_threads(order["num_threads"])
    return config_from_tree(order["config"]), Signature.from_json(order["signature"])


class Keeper:
    """Keeps the session: logs, checkpoints, evaluations, and when it is over."""

    def __init__(
        self,
        order: Order,
        config: RunConfig,
        learner: Learner | ReplayLearner,
        control: Control,
        listener: Listener,
        fleet: Callable[[], Record],
        bequests: Callable[[], dict[str, State]] = dict,
    ) -> None:
        """``bequests`` gives what a checkpoint keeps of actors."""
        self.order = order
        self.learner = learner
        self.control = control
        self.listener = listener
        self.bequests = bequests
        run = RunDirectory.open(Path(order["run"]))
        self.session = Session(
            config,
            run,
            _callbacks(order, control),
            fleet=fleet,
            policy=learner.policy,
            beside=self._beside if isinstance(learner, ReplayLearner) else None,
        )
        self.requested: set[int] = set()

    def begin(self) -> None:
        """Take up what the order says, and publish the first weights."""
        session, learner = self.session, self.learner
        checkpoint = restore_learner(self.order, learner)
        if checkpoint is not None:
            saved = checkpoint.parts["session"]
            session.load_state(saved, steps=learner.steps, updates=learner.updates)
            _LOG.info("going on from step %d", learner.steps)
        elif session.run.metrics_path.exists():
            cut(session.run.metrics_path, 0)
        self.control.send("started")
        learner.start()
        session.begin(learner.save_state)

    def go_on(self) -> bool:
        """Hear the driver and ask for evaluations that are due; whether to learn on."""
        self._hear()
        self._request()
        return self.session.outcome is None

    def note(self, update: Update) -> None:
        """Write down what an update did."""
        self.session.after_update(update, self.learner.save_state)

    def fill(self, learner: ReplayLearner) -> None:
        """Nothing is there to learn from; before the first batch, that may last."""
        if learner.source.filling():
            self.session.fill(learner.count_steps())

    def conclude(self) -> None:
        """Save the end, and wait for the scores of what was saved, unless interrupted or solved."""
        session = self.session
        session.finish(self.learner.save_state)
        patience = Patience(EVALUATION_TIMEOUT_SECS)
        enough = ("interrupted", "solved")
        while session.pending and session.outcome and session.outcome.state not in enough:
            self._request()
            self._hear()
            if patience.over():
                _LOG.warning("no evaluation came within %.0f s", EVALUATION_TIMEOUT_SECS)
                return
            time.sleep(0.02)

    def report(self) -> None:
        """Tell the driver how it ended."""
        session = self.session
        assert session.outcome is not None
        self.control.send(
            "outcome",
            state=session.outcome.state,
            reason=session.outcome.reason,
            steps=session.steps,
            updates=session.updates,
            wall_secs=session.wall_secs,
            reached_at=session.reached_at,
        )

    def _beside(self) -> dict[str, State]:
        """Have the replay process save itself beside the checkpoint that is being made."""
        formation, parts = self.session.config.formation_config, self.bequests()
        if not getattr(formation, "save_replay", False):
            return parts
        self.control.send("snapshot", steps=self.session.steps)
        return parts | snapshot_part(self.session.steps)

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *exc: object) -> None:
        self.session.close()

    def _hear(self) -> None:
        session = self.session
        for message in self.listener.take():
            if message["kind"] == "stop":
                session.stop(message["state"], message["reason"])
            elif message["kind"] == "evaluation" and message["steps"] in session.pending:
                session.on_evaluation(message["steps"], message["summary"])

    def _request(self) -> None:
        for steps in self.session.evaluations_due():
            if steps not in self.requested:
                self.requested.add(steps)
                self.control.send("evaluate", steps=steps)


def restore_learner(order: Order, learner: Learner | ReplayLearner) -> Checkpoint | None:
    """Weights and all else from where the order says; the checkpoint to go on from, if any."""
    if order["resume"] is not None:
        checkpoint = load_checkpoint(Path(order["resume"]))
        learner.load_state(checkpoint.parts)
        return checkpoint
    if order["init_from"] is not None:
        start = starting_weights(Path(order["init_from"]))
        load_weights(learner.policy, start.parts["weights"])
    return None


def _callbacks(order: Order, control: Control) -> Callbacks:
    """Tell the driver what happens; the user's own callbacks run there."""

    def episode(record: Record) -> None:
        control.send("episode", record=record)

    def record(record: Record) -> None:
        control.send("record", record=record)

    return Callbacks(on_episode=episode if order["tell_episodes"] else None, on_record=[record])
