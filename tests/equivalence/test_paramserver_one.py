"""One worker and its parameter servers learn what plain updates learn, bit for bit.

There is nobody else's gradient to be added: what the servers make of it comes back before the next
one, as it would in one process.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from rookery.algos.ppo import PPO
from rookery.runs.find import load_checkpoint
from tests.equivalence.test_engines_agree import final_bytes
from tests.equivalence.test_hogwild_one import ALGOS
from tests.equivalence.test_resume_exact import GRU, bytes_of, settings


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize(
    ("algo", "core", "optimizer", "mode"),
    [
        ("a2c", "none", {"name": "rmsprop"}, "sync"),
        ("ppo", "none", {}, "sync"),
        ("ppo", "gru", {"betas": [0.8, 0.75], "eps": 1e-8}, "sync"),
        ("ppo", "none", {}, "async"),
    ],
)
def test_one_worker_learns_what_plain_updates_learn(
    algo: str, core: str, optimizer: dict[str, Any], mode: str, servers: int, tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "algo": algo,
        algo: ALGOS[algo],
        "seed": 5,
        "envs": 4,
        "steps": 800,
        "eval": {"episodes": 0},
        "optimizer": optimizer | {"lr": {"start": 1e-3, "end": 1e-4, "until_steps": 600}},
        "policy": {"core": core, "core_size": 16, "normalize_obs": True},
        "quiet": True,
    }
    plain = rookery.train("CartPole-v1", formation="sync", run=tmp_path / "plain", **given)
    sharded = rookery.train(
        "CartPole-v1",
        formation="paramserver",
        paramserver={"num_servers": servers, "mode": mode},
        run=tmp_path / "sharded",
        **given,
    )
    for part in ("weights", "optimizer"):
        assert final_bytes(plain, part) == final_bytes(sharded, part), part
    assert plain.finish.updates == sharded.finish.updates > 5
    assert plain.finish.steps == sharded.finish.steps


def test_a_checkpoint_has_the_parts_of_every_formation(tmp_path: Path) -> None:
    given: dict[str, Any] = {"envs": 4, "steps": 600, "eval": {"episodes": 0}, "quiet": True}
    runs = [
        rookery.train("CartPole-v1", formation=name, run=tmp_path / name, **given)
        for name in ("sync", "paramserver")
    ]
    plain, sharded = (load_checkpoint(run.path, "latest").parts for run in runs)
    for part in ("weights", "optimizer", "learner"):
        shapes = [
            {name: np.shape(array) for name, array in parts[part].arrays.items()}
            for parts in (plain, sharded)
        ]
        assert shapes[0] == shapes[1]
        assert set(plain[part].data) == set(sharded[part].data)
    assert sharded["learner"].data["updates"] == runs[1].finish.updates
    begun = rookery.train(
        "CartPole-v1", formation="sync", init_from=runs[1].path, run=tmp_path / "on", **given
    )
    assert begun.finish.steps >= 600


@pytest.mark.slow
def test_stopped_within_an_update_which_is_made_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was stopped and resumed equals one that was not."""
    given = settings(policy=GRU, formation="paramserver", paramserver={"num_servers": 2})
    given |= {"eval": {"episodes": 0, "every_steps": None}, "save_every": 10_000, "quiet": True}
    straight = rookery.train("CartPole-v1", run=tmp_path / "straight", steps=1000, **given)
    calls, loss = [0], PPO.loss

    def signalling_loss(self: PPO, *rest: Any) -> Any:
        calls[0] += 1
        if calls[0] == 22:  # of 4 an update
            signal.raise_signal(signal.SIGTERM)
        return loss(self, *rest)

    monkeypatch.setattr(PPO, "loss", signalling_loss)
    stopped = rookery.train("CartPole-v1", run=tmp_path / "stopped", steps=1000, **given)
    assert stopped.finish.outcome.state == "interrupted"
    assert (calls[0], stopped.finish.updates) == (24, 6)
    rookery.resume(stopped.path, quiet=True)
    assert bytes_of(stopped.path) == bytes_of(straight.path)
