"""A worker acts and learns: its own rollouts, its own gradient, the mean gradient of its group.

All members of a group step together. The first one says at each step whether to go on, so that all
end at the same one.
"""

from __future__ import annotations

import numpy as np
import torch

from rookery.core.ports import BaseRole
from rookery.core.update import Update
from rookery.nets.policy import Policy
from rookery.roles.actor import Actor
from rookery.roles.learner import Learner
from rookery.runs.checkpoint_files import State

_LEARNER = "learner/"
OVER, GO_ON, WAIT = (np.array([word], np.float64) for word in range(3))
"""What the first member of a group tells the others."""


class Worker(BaseRole):
    """One actor and one learner, in turn."""

    def __init__(
        self, actor: Actor, learner: Learner, *, check_every: int, run_seed: int = 0
    ) -> None:
        self.actor, self.learner, self.group = actor, learner, learner.group
        self.check_every, self.run_seed = check_every, run_seed
        self._over = False

    @property
    def policy(self) -> Policy:
        """What it learns."""
        return self.learner.policy

    @property
    def steps(self) -> int:
        """Environment steps of the whole group."""
        return self.learner.steps

    @property
    def updates(self) -> int:
        """Updates so far."""
        return self.learner.updates

    def start(self) -> None:
        """Let the actor have the weights; of a group, each draws minibatches of its own."""
        if self.group.rank:
            self.learner.vary(self.run_seed)
        self.learner.start()

    def ready(self) -> bool:
        """There is always something to do."""
        return True

    def wait(self, timeout_secs: float) -> None:
        """Never called: it is always ready."""

    def step(self) -> Update | None:
        """Act, learn together with the group; now and then see that all hold the same weights."""
        if self.group.size > 1 and self.group.first(GO_ON) == OVER:
            self._over = True
            return None
        while self.actor.ready():
            self.actor.step()
        if self._half_made():
            return None
        update = self.learner.step()
        if update is not None and update.updates % self.check_every == 0:
            self.learner.check_agreement()
        return update

    def _half_made(self) -> bool:
        """Whether one of the group has left its rollout, so that nobody learns from theirs."""
        left = torch.tensor([self.actor.left], dtype=torch.float64)
        return bool(self.group.sum_(left))

    def done(self) -> bool:
        """Whether the first of the group has ended."""
        return self._over

    def finish(self) -> Update | None:
        """Let the others end too."""
        if self.group.size > 1 and self.group.rank == 0:
            self.group.first(OVER)
        return None

    def save_state(self) -> dict[str, State]:
        """The parts of a checkpoint that are the learner's."""
        return self.learner.save_state()

    def save_beside(self) -> dict[str, State]:
        """Nothing lies outside of checkpoints."""
        return {}

    def load_state(self, parts: dict[str, State]) -> None:
        """Go on from :meth:`save_state`."""
        self.learner.load_state(parts)

    def save_episodes(self) -> State | None:
        """Where its environments are."""
        return self.actor.save_episodes()

    def load_episodes(self, saved: State) -> None:
        """Go on from :meth:`save_episodes`."""
        self.actor.load_episodes(saved)

    def close(self) -> None:
        """Close the environments."""
        self.actor.close()


def save_both(actor: Actor, learner: Learner) -> State | None:
    """Where a worker's episodes are, and what its learner has to itself, where several learn around
    one set of weights."""
    saved = actor.save_episodes()
    if saved is None:
        return None
    own = learner.save_own()
    arrays = {f"{_LEARNER}{name}": array for name, array in own.arrays.items()}
    return State({**saved.arrays, **arrays}, saved.data | {"learner": own.data})


def load_both(actor: Actor, learner: Learner, saved: State) -> None:
    """Go on from :func:`save_both`; a worker of another formation has saved its episodes alone."""
    actor.load_episodes(saved)
    if "learner" in saved.data:
        own = {
            name.removeprefix(_LEARNER): array
            for name, array in saved.arrays.items()
            if name.startswith(_LEARNER)
        }
        learner.load_own(State(own, saved.data["learner"]))
