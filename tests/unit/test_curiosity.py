"""The bonus of an actor: on trajectories made by hand, at ends, and saved."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from rookery.algos.dqn import DQNConfig
from rookery.algos.family import FamilyConfig
from rookery.algos.ngu import BONUS, NGUConfig
from rookery.algos.novelty import NoveltyConfig
from rookery.core.spec import Array, Arrays
from rookery.envs.transition import StepResult
from rookery.nets.curious import CuriousQNetwork
from rookery.nets.q_network import ARM, LAST
from rookery.roles.curiosity import Curiosity, Indifference, blank_carried_over, curiosity_of
from rookery.roles.episodic_memory import EpisodicMemory
from rookery.roles.lane import Ended
from tests.curious import FLAT, SMALL_FAMILY, network, step_result
from tests.reference import intrinsic_reference as reference

NOBODY = np.empty(0, np.int64)


SMALL_NOVELTY: dict[str, Any] = {"embedding_features": 4, "capacity": 50}
CURIOUS = NGUConfig(
    **FLAT, family=FamilyConfig(**SMALL_FAMILY), novelty=NoveltyConfig(**SMALL_NOVELTY)
)


def curious(num_envs: int = 1, novelty: dict[str, Any] | None = None) -> Curiosity:
    config = replace(CURIOUS, novelty=NoveltyConfig(**SMALL_NOVELTY | (novelty or {})))
    made = curiosity_of(config, network(config), np.arange(num_envs), np.random.default_rng(0))
    assert isinstance(made, Curiosity)
    return made


def embeddings(policy: CuriousQNetwork, path: Array) -> Array:
    with torch.inference_mode():
        return policy.embed({"obs": torch.from_numpy(path)}).numpy()


def judge(curiosity: Curiosity, result: StepResult) -> Arrays:
    num = len(result.valid)
    return curiosity.judge(np.zeros(num, np.int64), np.zeros(num, np.float32), result)


def walk(curiosity: Curiosity, path: Array) -> Array:
    """The bonus of each step of one environment along ``path`` ``[T, 3]``, one episode."""
    bonus = []
    with torch.inference_mode():
        for step, (here, there) in enumerate(pairwise(path)):
            curiosity.begin({"obs": here[None]}, np.array([step == 0]))
            bonus.append(judge(curiosity, step_result(there[None]))[BONUS][0])
    return np.array(bonus)


def some_path(length: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(length, 3)).astype(np.float32)


# --- against the paper --------------------------------------------------------------------------


def test_the_bonus_is_the_papers() -> None:
    """A walk with places seen twice, against algorithm 1 and equation 1 in slow NumPy."""
    path = some_path(16)
    path[9], path[12:15] = path[2], path[4]
    found = walk(curiosity := curious(), path)
    seen, distances = embeddings(curiosity.policy, path), [[]]
    with torch.inference_mode():
        errors = curiosity.policy.novelty_errors({"obs": torch.from_numpy(path)}).double().numpy()
    for step in range(1, len(path)):
        filled = np.ones((1, step), np.bool_)
        episodic = reference.episodic_bonus(
            seen[step : step + 1], seen[None, :step], filled, distances
        )
        judged = errors[1 : step + 1]
        wanted = episodic
        if judged.std() > 0:
            wanted = reference.intrinsic_rewards(
                episodic, judged[-1:], judged.mean(), float(judged.std())
            )
        assert found[step - 1] == pytest.approx(wanted[0], rel=1e-4)
    assert found[8] < 0.2 * found[:8].min(), "what was seen before is worth little"


def test_the_first_step_has_a_neighbour_and_no_nan() -> None:
    """MarltasCore's mean distance began as the mean of nothing: NaN, and all after it."""
    curiosity = curious()
    found = walk(curiosity, some_path(4))
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert curiosity.memory is not None
    assert torch.isfinite(curiosity.memory.distance.mean).all()


def test_standing_still_from_the_first_step_on_is_not_new() -> None:
    """All distances are 0, and so is their mean: nothing may be divided by it."""
    found = walk(curious(), np.ones((12, 3), np.float32))
    assert np.isfinite(found).all()
    assert found[-1] == pytest.approx(1 / (np.sqrt(10) + 1e-3), rel=1e-3)
    assert (np.diff(found) <= 0).all()


def test_each_part_can_be_switched_off() -> None:
    path = some_path(10)
    both, episodic = walk(curious(), path), walk(curious(novelty={"life_long": False}), path)
    factor = both / episodic
    assert (factor >= 1 - 1e-6).all()
    assert factor.max() > 1.1
    life_long = walk(curious(novelty={"episodic": False}), path)
    assert life_long == pytest.approx(factor - 1, abs=1e-4)
    neither = walk(curious(novelty={"episodic": False, "life_long": False}), path)
    assert not neither.any()


def test_a_full_memory_forgets_the_oldest() -> None:
    curiosity = curious(novelty={"capacity": 10, "life_long": False})
    path = some_path(30)
    path[15], path[29] = path[14], path[14]
    found = walk(curiosity, path)
    assert found[14] < 2, "it was there a step ago"
    assert found[28] > 2, "and long ago, by now"


def test_environments_do_not_share_a_memory() -> None:
    curiosity = curious(num_envs=2)
    one, other = some_path(6), some_path(6, seed=1)
    with torch.inference_mode():
        for step in range(5):
            both = np.stack([one, other], 1)
            curiosity.begin({"obs": both[step]}, np.array([step == 0] * 2))
            bonus = judge(curiosity, step_result(both[step + 1]))[BONUS]
    alone = walk(curious(novelty={"life_long": False}), one)
    assert curiosity.memory is not None
    assert bonus[0] == pytest.approx(alone[-1], rel=4.1), "up to the life-long factor"
    assert curiosity.memory.count.tolist() == [6, 6]


# --- ends --------------------------------------------------------------------------------------


def test_an_end_empties_the_memory_and_judges_the_last_observation() -> None:
    curiosity = curious(novelty={"life_long": False})
    path = some_path(5)
    walk(curiosity, path)
    memory = curiosity.memory
    assert memory is not None
    with torch.inference_mode():
        curiosity.begin({"obs": path[4:]}, np.array([False]))
        new, first = some_path(1, seed=5), path[:1]
        ended = step_result(first, terminated=[True], final=new)
        assert judge(curiosity, ended)[BONUS][0] > 2, "the last one is new, the first is not"
        curiosity.begin({"obs": first}, np.array([True]))
        assert memory.count.tolist() == [1]
        again = judge(curiosity, step_result(path[1:2]))[BONUS][0]
    assert again > 2, "in a new episode everything is new again"


def test_a_lost_life_empties_the_memory_and_keeps_the_arm() -> None:
    """The learner's episode ends, the game goes on: its arm, its return and its bonus do too."""
    curiosity = curious(num_envs=2)
    curiosity.arms.config = FamilyConfig(num_arms=4, choice="uniform")
    obs = some_path(2)
    with torch.inference_mode():
        curiosity.begin({"obs": obs}, np.array([True, True]))
        before = curiosity.inputs()[ARM].copy()
        lost = step_result(
            obs, terminated=[True, False], final=obs + 1.0, whole_ended=[False, False]
        )
        stored = judge(curiosity, lost)
        assert curiosity.end(Ended(NOBODY, NOBODY, NOBODY))[0].size == 0
        assert (stored[ARM] == before).all()
        assert (curiosity.inputs()[ARM] == before).all()
        curiosity.begin({"obs": obs}, lost.reset)
    assert curiosity.memory is not None
    assert curiosity.memory.count.tolist() == [1, 2]
    assert (curiosity.bonus_return > 0).all()


def test_steps_spent_on_a_reset_are_not_judged() -> None:
    curiosity = curious(num_envs=2)
    obs = some_path(2)
    with torch.inference_mode():
        curiosity.begin({"obs": obs}, np.array([True, True]))
        stored = judge(curiosity, step_result(obs + 1.0, valid=[True, False]))
    assert curiosity.memory is not None
    assert curiosity.memory.count.tolist() == [2, 1]
    assert stored[BONUS][0] > 0 == stored[BONUS][1]
    assert float(curiosity.moments.num) == 1


def test_what_is_told_of_a_game() -> None:
    curiosity = curious(num_envs=4)
    curiosity.bonus_return[:] = [3.0, 4.0, 5.0, 6.0]
    rows = np.array([0, 2])
    arm, exploiting, mean = curiosity.end(Ended(rows, np.zeros(2), np.array([2, 5])))
    assert arm.tolist() == [0, 2]
    assert exploiting.tolist() == [1, 0]
    assert mean.tolist() == [1.5, 1.0]
    assert curiosity.bonus_return.tolist() == [0.0, 4.0, 0.0, 6.0]


def test_exploring_arms_see_what_brought_them_here() -> None:
    curiosity = curious(num_envs=2)
    obs = some_path(2)
    with torch.inference_mode():
        curiosity.begin({"obs": obs}, np.array([True, True]))
        assert not curiosity.inputs()[LAST].any()
        result = step_result(obs + 1.0)
        stored = curiosity.judge(np.array([2, 0]), np.array([0.5, 0.0], np.float32), result)
        assert not stored[LAST].any(), "what was seen when it acted"
        seen = curiosity.inputs()[LAST]
        assert seen[:, :2].tolist() == [[3.0, 0.5], [1.0, 0.0]]
        assert seen[:, 2] == pytest.approx(np.log1p(stored[BONUS]))
        curiosity.begin({"obs": obs}, np.array([False, True]))
    assert curiosity.inputs()[LAST].any(1).tolist() == [True, False]


# --- saved -------------------------------------------------------------------------------------


def test_it_goes_on_where_it_was() -> None:
    path = some_path(20)
    one, other = curious(), curious()
    walk(one, path[:11])
    saved = {name: array.copy() for name, array in one.save().items()}
    assert saved["memory/places"].shape[1] == 11, "empty places are not saved"
    other.load(saved)

    def rest(curiosity: Curiosity) -> list[float]:
        with torch.inference_mode():
            return [float(judge(curiosity, step_result(row[None]))[BONUS][0]) for row in path[11:]]

    assert rest(one) == rest(other)


def test_who_takes_its_place_knows_what_outlasts_episodes() -> None:
    first, second = curious(num_envs=2), curious(num_envs=2)
    shapes = {name: array.shape for name, array in first.carried_over().items()}
    path = some_path(6)
    with torch.inference_mode():
        first.begin({"obs": path[:2]}, np.array([True, True]))
        for row in path[2:]:
            judge(first, step_result(np.stack([row, row])))
    left = first.carried_over()
    assert {name: array.shape for name, array in left.items()} == shapes
    blank = blank_carried_over(CURIOUS, first.policy, 2)
    assert {name: array.shape for name, array in blank.items()} == shapes
    assert set(left) <= set(first.save()), "so a whole state serves as well"
    second.take_over({name: array.copy() for name, array in left.items()})
    assert second.moments.num == first.moments.num == 8
    assert second.memory is not None
    assert not second.memory.count.any(), "episodes begin anew"
    again = second.carried_over()
    for name, array in left.items():
        np.testing.assert_array_equal(again[name], array, err_msg=name)
    assert left["memory/distance_num"].min() > 0


def test_without_ngu_there_is_nothing() -> None:
    config = DQNConfig()
    none: Any = None
    plain = curiosity_of(config, none, np.arange(2), np.random.default_rng(0))
    assert type(plain) is Indifference
    assert (plain.inputs(), plain.save(), plain.carried_over()) == ({}, {}, {})
    assert plain.end(Ended(NOBODY, NOBODY, NOBODY)) == []


def test_a_memory_of_nobody_judges_nobody() -> None:
    memory = EpisodicMemory(NoveltyConfig(embedding_features=2), 3, torch.device("cpu"))
    none = torch.empty(0, dtype=torch.int64)
    assert memory.judge(torch.empty(0, 2), none).shape == (0,)
