"""Who keeps the session of workers and parameter servers: counts, logs, saves and restores.

It gives the servers what they begin with, now and whenever one takes another's place: the weights
and statistics that were saved last. For a checkpoint it asks each of them for its part.
"""

from __future__ import annotations

import numpy as np
import torch

from rookery.core.errors import RunFailed
from rookery.core.patience import Patience
from rookery.core.ports import BaseRole, ParamSink, Wakeup
from rookery.core.spec import Array, Arrays
from rookery.core.tensors import Tensors
from rookery.core.update import Update
from rookery.nets.normalizer import Moments, moments_in
from rookery.nets.policy import Policy
from rookery.roles.learner import Learner
from rookery.roles.parameter_server import MOMENTS, STATISTIC, parts_of
from rookery.roles.pushing import GRADIENTS, STEPS, VERSION
from rookery.roles.tally import WINDOW, Tally
from rookery.runs.checkpoint_files import State
from rookery.transport.calls import CallClient
from rookery.transport.reports import Reports
from rookery.transport.shards import WEIGHTS

LOOK_SECS = 0.05
"""How often the session looks for reports."""
ANSWER_SECS = 120.0
"""How long a server may take to give its part, or the one that takes its place."""


class ShardedSession(BaseRole):
    """Keeps the session; ``holder`` has what was saved last, in the form of every learner."""

    def __init__(
        self,
        holder: Learner,
        reports: Reports,
        kept: ParamSink,
        saves: list[CallClient],
        own: Wakeup,
        *,
        info_keys: tuple[str, ...],
        exactly: bool,
    ) -> None:
        """``exactly``: whether what is told must not depend on what was told before a stop."""
        self.holder, self.reports, self.saves, self.own = holder, reports, saves, own
        self.kept = kept
        self.moments = moments_in(holder.policy) | holder.algorithm.moments()
        self.parts = parts_of(len(holder.flat.data), len(saves))
        window = 1 if exactly else WINDOW
        self.tally = Tally(reports, info_keys, self._counts, window=window)
        self.first_version = self.first_updates = 0
        self._asked: list[int] = []
        """The servers that were asked for their parts."""
        self._times_kept = 0

    @property
    def policy(self) -> Policy:
        """The weights that were saved last."""
        return self.holder.policy

    @property
    def steps(self) -> int:
        """Steps of all workers."""
        return self.holder.steps

    @property
    def updates(self) -> int:
        """Updates of the weights: as many gradients as one update pushes are one."""
        return self.holder.updates

    def _counts(self, told: Arrays) -> tuple[int, int]:
        """From what workers told since: each its own steps, and how far the weights are."""
        rounds = (told[VERSION] - self.first_version) // np.maximum(told[GRADIENTS], 1)
        updates = max(self.updates, self.first_updates + int(rounds.max()))
        return self.steps + int(told[STEPS].sum()), updates

    def start(self) -> None:
        """Give the servers what they begin with."""
        self.first_version = int(self.holder.optimizer.state["step"])
        self.first_updates = self.updates
        self._keep()

    def _keep(self) -> None:
        """What a server that begins takes from here."""
        holder, state = self.holder, self.holder.optimizer.state
        values: Tensors = {
            WEIGHTS: holder.flat.data,
            "step": state["step"][None],
            **{f"{STATISTIC}{name}": value for name, value in state.items() if name != "step"},
            **{f"{MOMENTS}{name}": each.moments.packed() for name, each in self.moments.items()},
        }
        self._times_kept += 1
        self.kept.publish(self._times_kept, values)

    def ready(self) -> bool:
        """Whether an update was reported."""
        return self.tally.waiting()

    def wait(self, timeout_secs: float) -> None:
        """Sleep a moment: workers wake nobody when they report."""
        self.own.wait(min(timeout_secs, LOOK_SECS))

    def step(self) -> Update | None:
        """All that was reported since, as one update."""
        update = self.tally.take()
        if update is not None:
            self.holder.steps, self.holder.updates = update.steps, update.updates
        return update

    def finish(self) -> Update | None:
        """What was reported last."""
        return self.step()

    # ---- checkpoints -----------------------------------------------------------------------------

    def ask_for_parts(self) -> None:
        """Ask each server for its part."""
        for number, asker in enumerate(self.saves):
            asker.answers()  # of a time before
            if asker.can_ask():
                asker.ask(self.steps)
                self._asked.append(number)

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint: what the servers have, if they were asked."""
        if self._asked:
            for number in self._asked:
                self._take(self.parts[number], number, self._answer(number))
            self._asked.clear()
            self.policy.refreshed()
            self._keep()
        return self.holder.save_state()

    def _answer(self, number: int) -> Arrays:
        """What server ``number`` has."""
        patience = Patience(ANSWER_SECS)
        while not (found := self.saves[number].answers()):
            if patience.over():
                raise RunFailed(
                    f"server {number} did not give its weights for a checkpoint within "
                    f"{ANSWER_SECS:g} s; its log says more"
                )
            self.own.wait(LOOK_SECS)
        return found[-1][1]

    @torch.no_grad()
    def _take(self, part: slice, number: int, values: Arrays) -> None:
        """One server's part."""
        holder, size = self.holder, part.stop - part.start

        def given(name: str) -> torch.Tensor:
            array: Array = values[name][:size]
            return torch.from_numpy(array)

        holder.flat.data[part] = given(WEIGHTS)
        for name, mine in holder.optimizer.state.items():
            if name != "step":
                mine[part] = given(f"{STATISTIC}{name}")
        if number:
            return
        holder.optimizer.state["step"].fill_(int(values["step"][0]))
        for name, moments in self.moments.items():
            row = torch.from_numpy(values[f"{MOMENTS}{name}"])
            if row[0] > 0:
                moments.take(Moments.unpacked(row, moments.mean.shape))

    def save_beside(self) -> dict[str, State]:
        """Nothing lies outside of checkpoints."""
        return {}

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from :meth:`save_state`."""
        self.holder.load_state(parts)
