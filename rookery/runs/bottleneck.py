"""Who waits for whom, in a few words: what a record of a run with actors and a learner tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def bottleneck(record: Mapping[str, Any]) -> str | None:
    """As "learner-bound 82 %, lag 1.3 updates"; None where a record does not tell.

    Learner-bound: actors wait, for that share of their time; actor-bound: the learner does. In one
    thread nobody waits but for their turn: "learning 75 %".
    """
    actors = record.get("fleet/actor_wait_share")
    learner = record.get("fleet/learner_wait_share")
    if actors is None or learner is None:
        return None
    lag = record.get("train/lag_mean")
    age = "" if lag is None else f", lag {lag:.1f} updates"
    if "fleet/env_share" in record:
        return f"learning {_percent(1.0 - learner)}{age}"
    name, share = ("learner", actors) if actors >= learner else ("actor", learner)
    return f"{name}-bound {_percent(share)}{age}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"
