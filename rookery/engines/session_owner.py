"""Who keeps the session of a run: logs, checkpoints, evaluations, and when it is over.

::

    owner.begin(checkpoint, weights)
    with owner:
        run_members(members, stopping, owner)       # go_on, note, idle
        owner.conclude()
    owner.finish()
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rookery.core.heartbeat import DONE, shares
from rookery.core.patience import Patience
from rookery.core.ports import Asker
from rookery.core.spec import Arrays
from rookery.core.update import Update
from rookery.engines.absence import Absence
from rookery.engines.engine import Finish
from rookery.engines.loop import Member, Stopping
from rookery.programs.graph import Program
from rookery.roles.evaluator import Evaluation, note_on_cuts, read_answer
from rookery.roles.learner import load_weights
from rookery.roles.recorder import read_film
from rookery.runs.checkpoint_files import Checkpoint, State
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory
from rookery.runs.metrics import cut
from rookery.runs.packed_parts import of_a_checkpoint
from rookery.runs.session import Callbacks, Record, Session
from rookery.runs.stage import Stage
from rookery.transport.vitals import VitalsReader

_LOG = logging.getLogger(__name__)

EVALUATION_TIMEOUT_SECS = 3600.0
LOOK_SECS = 0.02
TELL_SECS = 0.25
"""How often it is told how far an evaluation is."""


class SessionOwner:
    """Keeps the session beside the role of ``member``, whose process or thread this is."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        program: Program,
        member: Member,
        callbacks: Callbacks,
        stopping: Stopping,
        *,
        warn: Callable[[str], None] = _LOG.warning,
        others: Callable[[], list[Member]] = list,
        parts_of_others: Callable[[], dict[str, State]] = dict,
    ) -> None:
        """``others`` take turns with ``member`` in this thread; what a checkpoint has of them is
        ``parts_of_others``."""
        self.program, self.member, self.role = program, member, member.role
        self.stopping, self.others, self.warn = stopping, others, warn
        self.parts_of_others = parts_of_others
        self.evaluation = member.ports.uses.get("evaluation")
        self.recording = member.ports.uses.get("recording")
        self.vitals: dict[str, VitalsReader] = dict(member.ports.serves["vitals"])
        self.restarts: int | None = None
        """Of whoever was replaced; None where nobody is."""
        self.evaluator = next(
            (edge.target for edge in program.edges if edge.port.name == "evaluation"), ""
        )
        self.nobody_evaluates = self._absence("evaluation", config)
        self.nobody_records = self._absence("recording", config)
        self.asked: set[int] = set()
        self._told_of_cuts = False
        self._episodes_told, self._told_moment = -1, 0.0
        self.session = Session(
            config,
            run,
            callbacks,
            fleet=self.fleet,
            policy=self.role.policy,
            beside=self._beside,
        )

    def _absence(self, port: str, config: RunConfig) -> Callable[[bool], bool]:
        """Whether nobody serves ``port``, given whether something is asked of them."""
        edge = next((edge for edge in self.program.edges if edge.port.name == port), None)
        if edge is None:
            return lambda asked: False
        node, reader = self.program.node(edge.target), self.vitals[edge.target]
        absence = Absence(node, reader, config.hosts.wait_secs, self.warn)
        return lambda asked: absence.too_long(asked=asked)

    # ---- begin and end ---------------------------------------------------------------------------

    def begin(self, checkpoint: Checkpoint | None, weights: State | None = None) -> None:
        """Go on from ``checkpoint``, or start with ``weights``; the others may act then."""
        session, role = self.session, self.role
        restore(role, checkpoint, weights)
        if checkpoint is not None:
            saved = checkpoint.parts["session"]
            session.load_state(saved, steps=role.steps, updates=role.updates)
            _LOG.info("going on from step %d", role.steps)
        elif session.run.metrics_path.exists():
            cut(session.run.metrics_path, 0)
        for other in self.others():
            if other.node.name == self.evaluator:  # while it has the turn, nobody else looks
                other.heartbeat.watcher = self._tell_evaluation
        role.start()
        session.begin(role.save_state)

    def conclude(self) -> None:
        """Save the end, and wait for the scores of what was saved, where they are wanted."""
        session = self.session
        last = self.role.finish()
        if last is not None:
            self.note(last)
        session.finish(self._parts)
        patience = Patience(EVALUATION_TIMEOUT_SECS)
        self._episodes_told = -1
        while session.awaits_scores():
            self._tell_evaluation()
            self.go_on()
            self._settle()
            self._hear()
            if self.nobody_evaluates(bool(session.pending)):
                break
            if session.pending and patience.over():
                _LOG.warning("no evaluation came within %.0f s", EVALUATION_TIMEOUT_SECS)
                break
            time.sleep(LOOK_SECS if session.pending else 0.0)
        self._await_film()

    def _await_film(self) -> None:
        """Wait, not for ever, for the film of what was saved."""
        session, secs = self.session, self.session.config.record.wait_secs
        patience = Patience(secs)
        if session.awaits_film():
            session.tell_stage(Stage("the last film"))
        while session.awaits_film():
            self.go_on()
            self._settle()
            self._hear()
            if self.nobody_records(session.films.open):
                return
            if session.films.open and patience.over():
                self.warn(f"the last film was not made within {secs:g} s (record.wait_secs)")
                return
            time.sleep(LOOK_SECS if session.films.open else 0.0)

    def finish(self) -> Finish:
        """How it ended."""
        session = self.session
        assert session.outcome is not None
        return Finish(
            session.outcome,
            session.steps,
            session.updates,
            session.wall_secs,
            extra={"reached_at": session.reached_at},
        )

    def __enter__(self) -> SessionOwner:
        return self

    def __exit__(self, *exc: object) -> None:
        self.session.close()

    # ---- what the loop calls ---------------------------------------------------------------------

    def go_on(self) -> bool:
        """Hear scores and whether to stop, ask for evaluations that are due; whether to go on."""
        self._hear()
        stop = self.stopping()
        if stop is not None:
            self.session.stop(stop.state, stop.reason)
        if self.evaluation is not None:
            for steps in self.session.evaluations_due():
                if steps not in self.asked and self.evaluation.can_ask():
                    self.asked.add(steps)
                    self.evaluation.ask(steps)
        if self.recording is not None and self.recording.can_ask():
            newest = self.session.films.next()
            if newest is not None:
                self.recording.ask(newest)
        self.nobody_evaluates(bool(self.session.pending))
        self.nobody_records(self.session.films.open)
        return self.session.outcome is None

    def note(self, update: Update) -> None:
        """Write down what an update did."""
        self.session.after_update(update, self._parts)

    def count_restarts(self, number: int) -> None:
        """So many were replaced."""
        self.restarts = number

    def idle(self) -> None:
        """Nothing can be learned from; before the first batch of a replay, that may last."""
        filling = self.role.filling()
        if filling is not None:
            self.session.fill(*filling)

    def _hear(self) -> None:
        for steps, values in _heard(self.evaluation):
            self.asked.discard(steps)  # and if it was skipped, it is asked again
            self._episodes_told = -1
            if values is not None and steps in self.session.pending:
                self._note_evaluation(steps, read_answer(values))
        for steps, values in _heard(self.recording):
            if values is None:
                self.session.films.ask_again(steps)
            else:
                self.session.on_film(steps, read_film(values))

    def _note_evaluation(self, steps: int, evaluation: Evaluation | None) -> None:
        if evaluation is None:
            self.warn(f"the evaluation of step {steps:,} came without scores; it is left out")
            self.session.leave_out_evaluation(steps)
            return
        self._tell_of_cuts(evaluation)
        self.session.on_evaluation(steps, evaluation.summary())

    def _tell_evaluation(self) -> None:
        """Say how many episodes the evaluation has played for which the run waits."""
        done, moment = int(self.vitals[self.evaluator].cells[0][DONE]), time.monotonic()
        recently = self._episodes_told >= 0 and moment - self._told_moment < TELL_SECS
        if done != self._episodes_told and not recently:
            self._episodes_told, self._told_moment = done, moment
            self.session.tell_evaluation(done)

    def _tell_of_cuts(self, evaluation: Evaluation) -> None:
        """Say once that episodes were cut, where nobody asked for that."""
        if evaluation.cut and not self._told_of_cuts:
            self._told_of_cuts = True
            self.warn(note_on_cuts(evaluation, "--eval.max_steps"))

    # ---- what the session asks -------------------------------------------------------------------

    def _parts(self) -> dict[str, State]:
        self.role.ask_for_parts()
        self._answer_here()
        parts: dict[str, State] = self.role.save_state()
        return parts | self.parts_of_others()

    def _beside(self) -> dict[str, State]:
        """What lies outside of checkpoints is saved before they say so, where that is possible."""
        parts: dict[str, State] = self.role.save_beside()
        self._answer_here()
        return parts

    def _answer_here(self) -> None:
        """Those that take turns with this role answer at once, but for who takes long."""
        for other in self.others():
            if other.node.busy:
                other.role.answer()

    def _settle(self) -> None:
        """Those that take turns with this role answer what was asked."""
        for other in self.others():
            other.role.answer()

    def fleet(self) -> Record:
        """Where everybody's time goes, and what they tell of themselves."""
        for other in self.others():
            other.tell()
        told: Record = {}
        for node in self.program.nodes:
            reader = self.vitals[node.name]
            alive = reader.alive()
            if node.stands_for_hosts:
                told |= reader.numbers()
                continue
            if not alive or (node.keeps_session and not node.busy):
                continue
            name = node.name
            rows = {replica: shares(cells) for replica, cells in alive.items()}
            waits = {replica: row["wait"] for replica, row in rows.items()}
            if node.has_envs:
                told[f"fleet/{name}s"] = len(rows)
                env_secs = sum(row["env"] for row in rows.values())
                told[f"fleet/{name}_env_share"] = env_secs / len(rows)
                if len(rows) > 1:
                    told[f"fleet/slowest_{name}"] = min(waits, key=lambda each: waits[each])
            told[f"fleet/{name}_wait_share"] = sum(waits.values()) / len(waits)
            if node.metrics:
                told |= reader.numbers()
        here = [member for member in (*self.others(), self.member) if member.node.has_envs]
        if self.others() and len(here) == self.program.acting.replicas:
            # One thread: whoever waits, waits for the turn.
            acting = [
                shares(cells)["env"]
                for cells in self.vitals[self.program.acting.name].alive().values()
            ]
            told["fleet/env_share"] = sum(acting)
        if self.restarts is not None:
            told["fleet/restarts"] = self.restarts
        numbers: dict[str, float] = self.role.metrics()
        return told | numbers


def _heard(asker: Asker | None) -> Iterator[tuple[int, Arrays | None]]:
    """What was dealt with of what was asked; without an answer, where nobody will give one."""
    while asker is not None and (heard := asker.hear()) is not None:
        yield heard


def restore(role: Any, checkpoint: Checkpoint | None, weights: State | None) -> None:
    """Begin at ``checkpoint``, or with ``weights``, or new."""
    if checkpoint is not None:
        role.load_state(checkpoint.parts)
    elif weights is not None:
        load_weights(role.policy, weights)


def begin_with(role: Any, parts: dict[str, State]) -> None:
    """Begin as the first of a group does: at its checkpoint, with its weights, or new."""
    if of_a_checkpoint(parts):
        restore(role, Checkpoint(path=Path(), steps=0, parts=parts), None)
    else:
        restore(role, None, parts.get("weights"))
