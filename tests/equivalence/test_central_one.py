"""One actor under `central` is the plain formation, bit for bit, in one thread.

Chance is drawn from the same streams, in the same order, and by the same weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.metrics import read_metrics
from tests.equivalence.test_engines_agree import final_bytes

COMMON: dict[str, Any] = {
    "seed": 3,
    "envs": 4,
    "steps": 1500,
    "log_every": 300,
    "save_every": 700,
    "eval": {"episodes": 0},
    "policy": {"hidden": [16]},
}
LSTM = {"hidden": [16], "core": "lstm", "core_size": 8}
ROLLOUTS = {"rollout_steps": 16}
STEPS = {"batch_size": 16, "learning_starts": 200, "capacity_steps": 2000, "steps_per_update": 4}
SEQUENCES = STEPS | {"length": 10, "burn_in": 4, "overlap": 5}
CASES: dict[str, dict[str, Any]] = {
    "a2c": {"algo": "a2c", "a2c": ROLLOUTS | {"rollouts_per_update": 2, "normalize_reward": True}},
    "a2c, lstm": {"algo": "a2c", "a2c": ROLLOUTS, "policy": LSTM | {"normalize_obs": True}},
    "ppo": {"algo": "ppo", "ppo": ROLLOUTS},
    "impala": {"algo": "impala", "impala": ROLLOUTS},
    "dqn": {"algo": "dqn", "dqn": STEPS},
    "dqn, several steps between looks": {
        "algo": "dqn",
        "dqn": STEPS | {"rollout_steps": 5, "publish_every": 7, "n_step": 3},
    },
    "apex, more updates than steps": {"algo": "apex", "apex": STEPS | {"steps_per_update": 2}},
    "r2d2": {"algo": "r2d2", "r2d2": SEQUENCES, "policy": LSTM},
    "ngu": {"algo": "ngu", "ngu": SEQUENCES, "policy": LSTM},
    "agent57": {"algo": "agent57", "agent57": SEQUENCES, "policy": LSTM},
}
REPEATS = ("ppo", "apex, more updates than steps", "ngu")


def plain(given: dict[str, Any]) -> dict[str, Any]:
    """The formation that stands behind."""
    if given["algo"] == "impala":
        return {"formation": "async", "async": {"slots_per_actor": 1}}
    return {"formation": "sync" if given["algo"] in ("a2c", "ppo") else "replay"}


def central(given: dict[str, Any]) -> dict[str, Any]:
    """With one slot where there is a queue, as in :func:`plain`."""
    queue = {"central": {"slots_per_actor": 1}} if given["algo"] == "impala" else {}
    return {"formation": "central"} | queue


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long) if case in REPEATS else case for case in CASES],
)
def test_one_actor_without_a_network_learns_the_same(case: str, tmp_path: Path) -> None:
    given = COMMON | CASES[case]
    runs = [
        rookery.train("CartPole-v1", run=tmp_path / name, **given, **how(given))
        for name, how in (("plain", plain), ("central", central))
    ]
    for part in ("weights", "optimizer"):
        assert final_bytes(runs[0], part) == final_bytes(runs[1], part)
    told = [
        [
            {key: value for key, value in record.items() if key.startswith(("rollout/", "train/"))}
            for record in read_metrics(run.path / "metrics.jsonl")
        ]
        for run in runs
    ]
    assert told[0] == told[1]


@pytest.mark.slow
def test_the_gate_sees_another_seed(tmp_path: Path) -> None:
    given = COMMON | CASES["a2c"]
    runs = [
        rookery.train(
            "CartPole-v1", run=tmp_path / f"{seed}", **given | {"seed": seed}, **how(given)
        )
        for seed, how in ((3, plain), (4, central))
    ]
    assert final_bytes(runs[0], "weights") != final_bytes(runs[1], "weights")
