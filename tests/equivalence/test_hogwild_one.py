"""One hogwild worker, in a process of its own, learns what one thread learns, bit for bit.

There is nobody to race with: gradients go to the shared weights and come back before the next
rollout, as they would to its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.find import load_checkpoint
from tests.equivalence.test_engines_agree import final_bytes

ALGOS: dict[str, dict[str, Any]] = {
    "a2c": {"rollout_steps": 20, "normalize_reward": True},
    "ppo": {"rollout_steps": 16, "num_epochs": 2, "num_minibatches": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "core", "optimizer"),
    [
        pytest.param("a2c", "none", {"name": "rmsprop"}, marks=pytest.mark.long),
        ("a2c", "lstm", {"amsgrad": True}),
        pytest.param("ppo", "none", {}, marks=pytest.mark.long),
        ("ppo", "gru", {"betas": [0.8, 0.9]}),
    ],
)
def test_one_worker_learns_what_one_thread_learns(
    algo: str, core: str, optimizer: dict[str, Any], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "algo": algo,
        algo: ALGOS[algo],
        "seed": 5,
        "envs": 4,
        "steps": 1600,
        "eval": {"episodes": 0},
        "optimizer": optimizer | {"lr": {"start": 1e-3, "end": 1e-4, "until_steps": 1000}},
        "policy": {"core": core, "core_size": 16, "normalize_obs": True},
    }
    plain = rookery.train(
        "CartPole-v1", formation="sync", engine="inline", run=tmp_path / "plain", **settings
    )
    hogwild = rookery.train(
        "CartPole-v1", formation="hogwild", engine="local", run=tmp_path / "hogwild", **settings
    )
    for part in ("weights", "optimizer"):
        assert final_bytes(plain, part) == final_bytes(hogwild, part)
    saved = [load_checkpoint(run.path, "latest").steps for run in (plain, hogwild)]
    assert saved[0] == saved[1] >= 1600
