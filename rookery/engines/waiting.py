"""Who waits for whom, for metrics and for people who read the log."""

from __future__ import annotations

import logging
import time

from rookery.engines.wiring import Wiring
from rookery.roles.learner import Learner
from rookery.roles.pulse import shares
from rookery.roles.replay_learner import ReplayLearner

_LOG = logging.getLogger(__name__)

POLL_SECS = 0.2
COMPLAIN_SECS = 30.0


class Hunger:
    """How long a learner has waited for experience; it complains every now and then.

    ::

        hunger = Hunger()
        while going_on():
            if learner.ready():
                learner.step()
                hunger.over()
            else:
                learner.wait(POLL_SECS)
                hunger.complain(source.missing())
    """

    def __init__(self) -> None:
        self.since = self.said = time.monotonic()

    def over(self) -> None:
        """There was something to learn from."""
        self.since = self.said = time.monotonic()

    def complain(self, missing: list[int]) -> None:
        """Say for whose experience the learner waits, and since when."""
        moment = time.monotonic()
        if moment - self.said < COMPLAIN_SECS:
            return
        self.said = moment
        names = ", ".join(f"actor-{actor}" for actor in missing) or "replay"
        _LOG.warning("waiting for experience of %s for %.0f s", names, moment - self.since)


def fleet_shares(wiring: Wiring, learner: Learner | ReplayLearner) -> dict[str, float]:
    """The bottleneck of actors and a learner."""
    return wiring.shares("actor") | {
        "fleet/learner_wait_share": shares(learner.pulse.cells)["wait"]
    }
