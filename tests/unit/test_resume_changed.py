"""A run that goes on with other environments than it had does not play its first episodes again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rookery

HERE = "tests.unit.test_resume_changed"


class Told(gym.Env[Any, Any]):
    """Writes down the seed of each of its episodes, which last four steps."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, file: str) -> None:
        self.file, self.left = Path(file), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        with self.file.open("a") as file:
            file.write(f"{seed}\n")
        self.left = 4
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_other_environments_play_other_episodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seeds = tmp_path / "seeds"
    run = rookery.train(
        f"{HERE}:Told",
        run=tmp_path / "run",
        steps=64,
        env={"num_envs": 2, "kwargs": {"file": str(seeds)}},
        ppo={"rollout_steps": 8, "num_minibatches": 1},
        eval={"episodes": 0},
    )
    before = seeds.read_text().split()
    seeds.unlink()
    rookery.resume(run.path, steps=192, env={"num_envs": 4})
    after = seeds.read_text().split()
    assert "actor-0 begins new episodes: the saved state" in caplog.text
    assert len(set(after) - set(before)) > 8
    played = after[len(after) // 2 :]  # making and looking at an environment begins some as well
    assert not set(played) & set(before)
