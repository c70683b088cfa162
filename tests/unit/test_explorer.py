"""The actions of an actor that learns from replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rookery

NUM_ACTIONS = 5


class Counting(gym.Env[Any, Any]):
    """Counts what is done in it; of the five actions three are legal where masks are seen."""

    counts = np.zeros(NUM_ACTIONS, int)

    def __init__(self, masked: bool) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(NUM_ACTIONS)
        self.legal = np.array([0, 1, 0, 1, 1] if masked else [1] * NUM_ACTIONS, np.int8)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**given)
        return self._seen(), {"action_mask": self.legal}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.counts[int(action)] += 1
        return self._seen(), 0.0, False, False, {"action_mask": self.legal}

    def _seen(self) -> Any:
        return np.array([0.5, -0.3], np.float32)


def counted(tmp_path: Path, *, masked: bool, epsilon: float, value_gain: float) -> list[int]:
    """How often each action is taken in 400 steps, before anything is learned."""
    Counting.counts = np.zeros(NUM_ACTIONS, int)
    rookery.train(
        Counting,
        algo="dqn",
        run=tmp_path / "run",
        steps=400,
        env={"num_envs": 2, "kwargs": {"masked": masked}, "action_mask_key": "action_mask"},
        policy={"hidden": [8], "value_gain": value_gain},
        dqn={"learning_starts": 400, "epsilon": {"start": epsilon, "end": epsilon}},
        eval={"episodes": 0, "every_steps": None},
    )
    return list(Counting.counts.tolist())


@pytest.mark.parametrize(("epsilon", "value_gain"), [(0.0, 0.0), (1.0, 1.0)])
@pytest.mark.parametrize("masked", [False, True])
def test_of_actions_that_are_alike_any_is_taken(
    tmp_path: Path, masked: bool, epsilon: float, value_gain: float
) -> None:
    """Values of nothing are all 0; and whatever they are, chance does not look at them."""
    counts = counted(tmp_path, masked=masked, epsilon=epsilon, value_gain=value_gain)
    legal = [1, 3, 4] if masked else range(NUM_ACTIONS)
    for action, count in enumerate(counts):
        expected = 400 / len(legal) if action in legal else 0
        assert count == pytest.approx(expected, abs=45 if expected else 0)


def test_the_best_is_taken_where_values_differ(tmp_path: Path) -> None:
    counts = counted(tmp_path, masked=False, epsilon=0.0, value_gain=1.0)
    assert sorted(counts)[:-1] == [0] * (NUM_ACTIONS - 1)
