"""Arms: constant within an episode, counted once an episode, and the bandit that chooses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rookery.algos.family import FamilyConfig
from rookery.core.errors import UserError
from rookery.roles.arms import Arms


def arms(num_envs: int = 4, seed: int = 0, **given: Any) -> Arms:
    return Arms(FamilyConfig(**given), np.arange(num_envs), np.random.default_rng(seed))


def rows(*values: int) -> Any:
    return np.array(values, np.int64)


def test_fixed_arms_are_those_of_the_environments() -> None:
    fixed = Arms(FamilyConfig(num_arms=3), np.arange(4, 8), np.random.default_rng(0))
    assert fixed.current.tolist() == [1, 2, 0, 1]
    fixed.end(rows(0, 1), np.array([5.0, 6.0]))
    assert fixed.current.tolist() == [1, 2, 0, 1]
    assert (fixed.played == -1).all()
    fixed.load(arms(num_arms=3, choice="uniform", seed=5).save())
    assert fixed.current.tolist() == [1, 2, 0, 1], "also after a run in which they were drawn"


@pytest.mark.parametrize("choice", ["uniform", "bandit"])
def test_only_who_ended_gets_another_arm(choice: Any) -> None:
    drawn = arms(num_envs=40, num_arms=32, choice=choice)
    before = drawn.current.copy()
    drawn.end(rows(), np.empty(0))
    assert (drawn.current == before).all()
    drawn.end(np.arange(20), np.zeros(20))
    assert (drawn.current[20:] == before[20:]).all()
    assert (drawn.current[:20] != before[:20]).sum() > 10
    assert len(np.unique(before)) > 15


def test_an_episode_counts_once_and_for_the_arm_that_played_it() -> None:
    """MarltasCore put returns a row beside their arms: an arm got what another had earned."""
    bandit = arms(num_envs=2, num_arms=3, choice="bandit", window=5)
    expected: list[list[tuple[int, float]]] = [[], []]
    for episode in range(4):
        for row in (0, 1):
            arm = int(bandit.current[row])
            bandit.end(rows(row), np.array([10.0 * row + episode]))
            expected[row].append((arm, 10.0 * row + episode))
    for row in (0, 1):
        played, returned = bandit.played[row].tolist(), bandit.returned[row].tolist()
        assert played[0] == -1, "four episodes in a window of five"
        assert list(zip(played[1:], returned[1:], strict=True)) == expected[row]


def test_epsilons_are_chosen_with_the_arms() -> None:
    epsilons = (0.5, 0.01)
    fixed = arms(num_envs=7, num_arms=3, epsilons=epsilons)
    assert fixed.current.tolist() == [0, 0, 1, 1, 2, 2, 0]
    assert fixed.epsilon is not None
    assert fixed.epsilon.tolist() == [0.5, 0.01, 0.5, 0.01, 0.5, 0.01, 0.5]
    assert arms(num_arms=3).epsilon is None


def test_a_state_of_another_family_is_refused() -> None:
    mine = arms(num_arms=3, epsilons=(0.5, 0.01))
    again = arms(num_arms=3, epsilons=(0.5, 0.01), seed=1)
    again.load(mine.save())
    assert again.current.tolist() == mine.current.tolist()
    with pytest.raises(UserError, match="had 6 arms and epsilons to choose among, this one has 3"):
        arms(num_arms=3).load(mine.save())


@pytest.mark.parametrize(("score", "most"), [("ucb", 1.0), ("ucb1_tuned", 100.0)])
def test_a_bandit_finds_the_best_pair_of_arm_and_epsilon(score: Any, most: float) -> None:
    bandit = arms(
        num_envs=1,
        num_arms=3,
        epsilons=(0.5, 0.1, 0.0),
        choice="bandit",
        random_share=0.0,
        window=60,
        bonus=0.2,
        score=score,
    )
    played = []
    for _ in range(200):
        assert bandit.epsilon is not None
        arm, epsilon = int(bandit.current[0]), float(bandit.epsilon[0])
        played.append((arm, epsilon))
        bandit.end(rows(0), np.array([most * (arm == 1) * (1.0 - epsilon)]))
    assert set(played[:9]) == {(arm, epsilon) for arm in range(3) for epsilon in (0.5, 0.1, 0.0)}
    assert played[100:].count((1, 0.0)) > 40
    assert sum(arm == 1 for arm, _ in played[100:]) > 70


def test_epsilons_are_shares() -> None:
    with pytest.raises(UserError, match=r"family.epsilons: must be within 0 and 1, got \[2.0\]"):
        FamilyConfig(epsilons=(2.0,))
    with pytest.raises(UserError, match="cannot hold one of each of 12 arms"):
        FamilyConfig(num_arms=4, epsilons=(0.1, 0.2, 0.3), choice="bandit", window=11)


def test_every_arm_is_tried_before_one_is_tried_again() -> None:
    bandit = arms(num_envs=1, num_arms=6, choice="bandit", random_share=0.0)
    seen = []
    for _ in range(6):
        seen.append(int(bandit.current[0]))
        bandit.end(rows(0), np.array([0.0]))
    assert sorted(seen) == list(range(6))


@pytest.mark.parametrize("shared", [False, True])
def test_the_best_arm_wins_and_loses_when_the_world_changes(shared: bool) -> None:
    bandit = arms(num_envs=2, num_arms=4, choice="bandit", random_share=0.1, window=40, bonus=0.1)
    bandit = arms(
        num_envs=2,
        num_arms=4,
        choice="bandit",
        random_share=0.1,
        window=40,
        bonus=0.1,
        shared=shared,
    )

    def share(good: int, episodes: int) -> float:
        hits = 0
        for _ in range(episodes):
            hits += int((bandit.current == good).sum())
            bandit.end(rows(0, 1), (bandit.current == good).astype(float))
        return hits / (2 * episodes)

    share(0, 100)
    assert share(0, 100) > 0.7
    share(3, 150)
    assert share(3, 100) > 0.7


def test_it_goes_on_where_it_was() -> None:
    one, other = (arms(num_envs=3, num_arms=4, choice="bandit") for _ in range(2))
    for _ in range(7):
        one.end(rows(0, 2), np.array([1.0, 2.0]))
    other.load({name: array.copy() for name, array in one.save().items()})
    other.rng.bit_generator.state = one.rng.bit_generator.state
    for _ in range(7):
        for both in (one, other):
            both.end(rows(0, 1), np.array([1.0, 2.0]))
        assert (one.current == other.current).all()
    assert (one.played == other.played).all()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"num_arms": 0}, "num_arms: must be at least 1"),
        ({"beta_max": -1.0}, "must not be negative"),
        ({"gamma_min": 1.0}, "gamma_min: must be at least 0 and below 1"),
        ({"random_share": 1.5}, "random_share: must be within 0 and 1"),
        ({"choice": "bandit", "window": 8}, "window: 8 episodes .* set it to 32 or more"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        FamilyConfig(**wrong)


def test_the_family_falls_from_the_algorithms_gamma() -> None:
    family = FamilyConfig(num_arms=5, gamma_min=0.9, beta_max=0.5)
    gammas, betas = family.gammas(0.99), family.betas()
    assert gammas[0] == pytest.approx(0.99)
    assert gammas[-1] == pytest.approx(0.9)
    assert (gammas.diff() < 0).all()
    assert (betas[0], betas[-1]) == (0.0, 0.5)
    assert (betas.diff() > 0).all()
    curved = FamilyConfig(gamma_middle=0.997).gammas(0.9999)
    assert curved[7] == pytest.approx(0.997)
    with pytest.raises(UserError, match=r"must fall from algo.gamma, 0.8, to 0.9"):
        family.check(0.8)
