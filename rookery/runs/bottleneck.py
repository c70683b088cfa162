"""Who waits for whom, in a few words: what a record of a run with actors and a learner tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def bottleneck(record: Mapping[str, Any]) -> str | None:
    """As "learner-bound 82 %, lag 1.3 updates"; None where a record does not tell.

    Learner-bound: actors wait, for that share of their time; actor-bound: the learner does. In one
    thread nobody waits but for their turn: "learning 75 %". Where actions are chosen elsewhere,
    whoever waits least is waited for, and the share is that of who waits most.
    """
    actors = record.get("fleet/actor_wait_share")
    learner = record.get("fleet/learner_wait_share")
    if actors is None or learner is None:
        return None
    lag = record.get("train/lag_mean")
    age = "" if lag is None else f", lag {lag:.1f} updates"
    if "fleet/env_share" in record:
        return f"learning {_percent(1.0 - learner)}{age}"
    waits = {"learner": learner, "actor": actors}
    if (inference := record.get("fleet/inference_wait_share")) is not None:
        waits["inference"] = inference
    name = min(waits, key=lambda role: waits[role])
    return f"{name}-bound {_percent(max(waits.values()))}{age}"


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f} %"
