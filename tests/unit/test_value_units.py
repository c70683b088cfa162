"""The value that is shown is in units of the score, or says of what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rookery.ops.q_learning import rescale
from rookery.play.panel import value_label
from rookery.play.past import past_agents
from rookery.play.player import Player
from rookery.runs.find import load_checkpoint
from rookery.runs.trained import find_trained
from rookery.runs.value_units import ValueUnits, value_units
from tests.play_runs import train_tiny


def units(**own: Any) -> ValueUnits:
    return value_units({"algo": "dqn", "dqn": own}, None)


def test_what_was_multiplied_is_divided() -> None:
    found = units(reward_scale=0.05, gamma=0.99)
    assert found.of(5.0) == pytest.approx(100.0)
    assert (found.rewards, found.gamma) == ("", 0.99)
    assert value_label(found) == "VALUE"


def test_square_roots_are_undone() -> None:
    learned = float(rescale(torch.tensor(0.5 * 300.0, dtype=torch.float64)))
    assert units(rescale=True, reward_scale=0.5).of(learned) == pytest.approx(300.0)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"reward_min": -1.0, "reward_max": 1.0}, "VALUE, CLIPPED REWARDS"),
        ({"reward_min": -20.0}, "VALUE, CLIPPED REWARDS"),
        ({"shape_reward": "mine:f"}, "VALUE, SHAPED REWARDS"),
        ({"normalize_reward": True}, "VALUE, NORMALISED REWARDS"),
        ({"shape_reward": "mine:f", "reward_max": 1.0}, "VALUE, SHAPED AND CLIPPED REWARDS"),
    ],
)
def test_what_cannot_be_undone_is_told(own: dict[str, Any], told: str) -> None:
    assert value_label(units(**own)) == told


def test_settings_that_are_not_told_are_not_guessed() -> None:
    assert value_label(value_units({}, None)) == "VALUE, UNKNOWN REWARDS"


@pytest.mark.slow
def test_the_lander_expects_what_comes() -> None:
    trained = find_trained("zoo:lunarlander")
    with Player(trained, mode="rgb_array", seed=0) as player:
        moments = list(player.episode(0))
    gamma = trained.value_units.gamma
    assert gamma == 0.999
    rewards = np.array([moment.reward for moment in moments[1:]])
    to_come = float(rewards @ gamma ** np.arange(len(rewards)))
    assert moments[0].decision is not None
    # Its critic is a careful one; what it learned is 20 times less than this.
    assert 0.3 * to_come < moments[0].decision.value < 1.2 * to_come


@pytest.mark.slow
def test_normalised_rewards_are_undone_by_the_statistics_of_the_run(tmp_path: Path) -> None:
    own = {"normalize_reward": True, "reward_scale": 2.0, "num_minibatches": 2, "num_epochs": 1}
    run = train_tiny("CartPole-v1", tmp_path / "run", ppo=own)
    var = load_checkpoint(run, "latest", ["learner"]).parts["learner"].arrays["var"]
    trained = find_trained(run)
    assert trained.value_units.of(1.0) == pytest.approx(float(var) ** 0.5 / 2.0, rel=1e-4)
    assert value_label(trained.value_units) == "VALUE"
    (past,) = past_agents(str(run), trained, [0.0])
    assert value_label(past.trained.value_units) == "VALUE, NORMALISED REWARDS"
