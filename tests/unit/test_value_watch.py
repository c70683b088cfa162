"""Values beyond what rewards allow are said, once; others are not."""

from __future__ import annotations

import math

import pytest
import torch

from rookery.algos.agent57 import Agent57, Agent57Config
from rookery.algos.dqn import DQN, R2D2, DQNConfig, R2D2Config
from rookery.ops.q_learning import rescale
from rookery.roles.value_watch import PATIENCE_UPDATES, ValueWatch

CPU = torch.device("cpu")


def watch(gamma: float = 0.99) -> tuple[ValueWatch, list[str]]:
    told: list[str] = []
    algorithm = DQN(DQNConfig(gamma=gamma), recurrent=False, device=CPU)
    return ValueWatch(algorithm.most_value, told.append), told


def look(watching: ValueWatch, value: float, times: int, reward: float = 1.0) -> None:
    for step in range(times):
        watching.look(value, reward, step)


def test_values_that_rewards_allow_are_passed_over() -> None:
    watching, told = watch()
    look(watching, 99.0, 10 * PATIENCE_UPDATES)
    look(watching, 5e9, PATIENCE_UPDATES - 1)
    look(watching, 99.0, 1)
    look(watching, -5e9, PATIENCE_UPDATES - 1)
    assert not told


@pytest.mark.parametrize("value", [134.0, -134.0, math.inf])
def test_values_that_rewards_do_not_allow_are_said_once(value: float) -> None:
    watching, told = watch()
    look(watching, value, 5 * PATIENCE_UPDATES)
    assert len(told) == 1
    assert f"values average {value:.4g}" in told[0]
    assert "rewards of at most 1 cannot add up to more than 100" in told[0]


def test_the_largest_reward_so_far_counts() -> None:
    watching, told = watch()
    watching.look(0.0, 3.0, 0)
    look(watching, 200.0, 2 * PATIENCE_UPDATES)
    assert not told


def test_without_a_discount_or_rewards_there_is_no_bound() -> None:
    for gamma, reward in ((1.0, 1.0), (0.99, 0.0)):
        watching, told = watch(gamma)
        look(watching, 1e6, 2 * PATIENCE_UPDATES, reward)
        assert not told


def test_the_bound_is_on_the_scale_of_the_values() -> None:
    r2d2 = R2D2(R2D2Config(gamma=0.99), recurrent=True, device=CPU)
    assert r2d2.most_value(1.0) == pytest.approx(float(rescale(torch.tensor(100.0))), rel=1e-4)
    family = Agent57(Agent57Config(), recurrent=True, device=CPU)
    most = 1.0 / (1.0 - float(family.gammas.max()))
    assert family.most_value(1.0) == pytest.approx(float(rescale(torch.tensor(most))), rel=1e-3)
