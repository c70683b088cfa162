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


def complain(waited: float, missing: list[int]) -> float:
    """Say for whose experience the learner has waited since ``waited``, every now and then; since
    when it waits, or has last said so."""
    moment = time.monotonic()
    if moment - waited < COMPLAIN_SECS:
        return waited
    names = ", ".join(f"actor-{actor}" for actor in missing) or "replay"
    _LOG.warning("waiting for experience of %s for %.0f s", names, moment - waited)
    return moment


def fleet_shares(wiring: Wiring, learner: Learner | ReplayLearner) -> dict[str, float]:
    """The bottleneck of actors and a learner."""
    return wiring.shares("actor") | {
        "fleet/learner_wait_share": shares(learner.pulse.cells)["wait"]
    }
