"""A worker acts and learns: its own rollouts, its own gradient, the mean gradient of its group.

::

    while group.first(go_on):
        update = worker.step()
"""

from __future__ import annotations

from rookery.roles.actor import Actor
from rookery.roles.learner import Learner, Update


class Worker:
    """One actor and one learner, in turn."""

    def __init__(self, actor: Actor, learner: Learner, *, check_every: int) -> None:
        self.actor = actor
        self.learner = learner
        self.check_every = check_every

    def step(self) -> Update:
        """Act, learn together with the group; now and then see that all hold the same weights."""
        while self.actor.ready():
            self.actor.step()
        update = self.learner.step()
        if update.updates % self.check_every == 0:
            self.learner.check_agreement()
        return update

    def close(self) -> None:
        """Close the environments."""
        self.actor.close()
