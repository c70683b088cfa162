"""What the pages say is learned, with the flags that they give."""

from __future__ import annotations

from pathlib import Path

import pytest

import rookery


@pytest.mark.long
def test_cliff_walking_with_the_flags_of_its_page(tmp_path: Path) -> None:
    run = rookery.train(
        "CliffWalking-v1",
        run=tmp_path / "run",
        steps=300_000,
        env={"max_episode_steps": 200},
        ppo={"normalize_reward": True},
        quiet=True,
    )
    assert run.evaluate(episodes=5)["return_mean"] == -13.0, "the best possible"


@pytest.mark.long
def test_taxi_with_the_flags_of_its_page(tmp_path: Path) -> None:
    run = rookery.train(
        "Taxi-v4",
        run=tmp_path / "run",
        steps=500_000,
        lr=1e-3,
        envs=32,
        env={"action_mask_key": "action_mask"},
        ppo={"normalize_reward": True},
        quiet=True,
    )
    assert run.evaluate(episodes=50)["return_mean"] > 7.0


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pendulum_reaches_its_goal(seed: int, tmp_path: Path) -> None:
    assert rookery.train("pendulum", seed=seed, run=tmp_path / "run", quiet=True).solved
