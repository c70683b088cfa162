"""Stopped within a rollout or an update and resumed, a run equals one that never stopped."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.algos.ppo import PPO
from rookery.engines import loop
from rookery.roles import actor, learner
from rookery.runs.find import load_checkpoint
from tests.equivalence import signalling
from tests.equivalence.test_resume_exact import A2C, ASYNC, GRU, bytes_of, settings, without_ppo

WORLD = "tests.equivalence.signalling:make"
QUIET: dict[str, Any] = {"episodes": 0, "every_steps": None}
CASES: dict[str, dict[str, Any]] = {
    "sync": settings(policy=GRU),
    "two halves": settings(**{"env.halves": 2}),
    "rounds of two actors": without_ppo(settings(**A2C)),
    "async": without_ppo(settings(**ASYNC)),
    "a worker": settings(formation="allreduce"),
    "a hogwild worker": settings(formation="hogwild", policy={"normalize_obs": False}),
    "a worker of servers": settings(formation="paramserver", paramserver={"num_servers": 2}),
}


@pytest.fixture(autouse=True)
def _everything_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "QUICK_SECS", 0.0)
    monkeypatch.setattr(learner, "QUICK_SECS", 0.0)


def train(path: Path, given: dict[str, Any]) -> Any:
    given = given | {"eval": QUIET, "save_every": 10_000}
    return rookery.train(WORLD, run=path, steps=1000, quiet=True, **given)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_stopped_within_a_rollout(case: str, tmp_path: Path) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(straight, CASES[case])
    signalling.due[:] = [531]  # of 64 steps a round, or 128: within one
    done = train(stopped, CASES[case])
    assert (done.finish.outcome.state, done.finish.outcome.reason) == ("interrupted", "SIGTERM")
    made = done.finish.steps
    assert made <= 531, "no step of the rollout that was left counts"
    assert load_checkpoint(stopped).steps == made
    rookery.resume(stopped, quiet=True)
    assert bytes_of(stopped) == bytes_of(straight)


@pytest.mark.slow
def test_a_rollout_that_others_step_is_left_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run goes on in new episodes, of all: what is half made is in no checkpoint."""
    monkeypatch.setattr(loop, "POLL_SECS", 0.0)
    signalling.due[:] = [531]
    done = train(tmp_path, settings(formation="central"))
    assert (done.finish.outcome.state, done.finish.outcome.reason) == ("interrupted", "SIGTERM")
    assert done.finish.steps < 531
    parts = load_checkpoint(tmp_path).parts
    assert not [name for name in parts if name.startswith(("actor-", "inference-"))]
    assert rookery.resume(tmp_path, quiet=True).finish.steps >= 1000


@pytest.mark.slow
def test_stopped_within_the_first_rollout(tmp_path: Path) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(straight, CASES["sync"])
    signalling.due[:] = [9]
    assert train(stopped, CASES["sync"]).finish.steps == 0
    rookery.resume(stopped, quiet=True)
    assert bytes_of(stopped) == bytes_of(straight)


@pytest.mark.slow
@pytest.mark.parametrize("average", [0, 6])
@pytest.mark.parametrize("formation", ["sync", "allreduce"])
def test_stopped_within_an_update(
    formation: str, average: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = settings(policy=GRU, formation=formation, optimizer={"average_updates": average})
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(straight, given)
    calls, loss = [0], PPO.loss

    def signalling_loss(self: PPO, *rest: Any) -> Any:
        calls[0] += 1
        if calls[0] == 22:  # of 4 an update
            signal.raise_signal(signal.SIGTERM)
        return loss(self, *rest)

    monkeypatch.setattr(PPO, "loss", signalling_loss)
    done = train(stopped, given)
    assert done.finish.outcome.state == "interrupted"
    assert (calls[0], done.finish.updates) == (22, 5)
    rookery.resume(stopped, quiet=True)
    assert bytes_of(stopped) == bytes_of(straight)
