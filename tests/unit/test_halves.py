"""An actor with two halves fills exactly the rollout that one vector of its environments gives."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rookery
from rookery.core.errors import UserError
from rookery.core.ports import End
from rookery.core.spec import Array, Arrays, LeafSpec, LeafSpecs
from rookery.envs.make import EnvConfig
from rookery.envs.transition import BackgroundVectorEnv, StepResult
from rookery.params.flat import FlatParams
from rookery.roles.actor import Actor
from rookery.transport.blocks import BlockSink, BlockSource, RolloutBlock
from tests.equivalence.test_engines_agree import final_bytes
from tests.rollouts import DISCRETE, FLOAT, empty_rollout, small_policy
from tests.wired import weights_cell

T, B = 7, 6


class Counters:
    """Environment ``i`` of the run is decided by its number, its time and its actions alone."""

    action_leaf = DISCRETE

    def __init__(self, first: int, count: int, diary: list[str]) -> None:
        self.num_envs = count
        self.obs_leaves: LeafSpecs = {"obs": LeafSpec("box", (3,), FLOAT)}
        self.lost_episodes: Array = np.zeros(0, np.int64)
        self.number = np.arange(first, first + count)
        self.age = np.zeros(count, np.int64)
        self.total = np.zeros(count, np.int64)
        self.name, self.diary = f"{first}", diary

    def _observe(self) -> Arrays:
        seen = np.stack([self.number / 10, self.age / 5, np.sin(self.total)], 1)
        return {"obs": seen.astype(np.float32)}

    def reset(self) -> Arrays:
        return self._observe()

    def step(self, actions: Array) -> StepResult:
        self.diary.append(f"step {self.name}")
        self.age += 1
        self.total += actions + 1
        reward = np.cos(self.total + self.number).astype(np.float64)
        ended = self.age > 2 + self.number % 3
        truncated = ended & (self.number % 2 == 0)
        final = self._observe() if ended.any() else None
        self.age[ended] = 0
        return StepResult(
            obs=self._observe(),
            reward=reward,
            terminated=ended & ~truncated,
            truncated=truncated,
            valid=np.ones(self.num_envs, np.bool_),
            reset=ended,
            final_obs=final,
        )

    def state_dict(self) -> tuple[Arrays, dict[str, Any]] | None:
        return {"age": self.age.copy(), "total": self.total.copy()}, {"name": self.name}

    def load_state_dict(self, arrays: Arrays, data: dict[str, Any]) -> Arrays:
        assert data["name"] == self.name
        self.age, self.total = arrays["age"], arrays["total"]
        return self._observe()

    def close(self) -> None:
        self.diary.append(f"close {self.name}")


class Background(Counters):
    """The same, stepped in the background."""

    def begin_step(self, actions: Array) -> None:
        self.diary.append(f"begin {self.name}")
        self.actions = actions.copy()

    def finish_step(self) -> StepResult:
        self.diary.append(f"finish {self.name}")
        return super().step(self.actions)


class Stage:
    """An actor over a block of one slot."""

    def __init__(self, kind: type[Counters], halves: int, core: str) -> None:
        self.diary: list[str] = []
        half = B // halves
        first, *rest = (kind(start, half, self.diary) for start in range(0, B, half))
        policy = small_policy(core)
        arrays = empty_rollout(policy, T, B).flat()
        self.block = RolloutBlock(arrays, np.zeros(1, np.int64), num_actors=1, num_envs=B)
        params = FlatParams(small_policy(core)).tensors()
        cell = weights_cell(params)
        cell.publish(3, params)
        self.actor = Actor(
            envs=first,
            second=rest[0] if rest else None,
            policy=policy,
            sink=BlockSink(self.block, End({})),
            params=cell,
            rng=np.random.default_rng(3),
            device=torch.device("cpu"),
        )

    def round(self) -> Arrays:
        BlockSource(self.block, End({})).release()
        assert self.actor.ready()
        self.actor.step()
        return {name: array.copy() for name, array in self.block.batch.flat().items()}


def assert_same(mine: Arrays, theirs: Arrays) -> None:
    for name, array in mine.items():
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, theirs[name], atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize("kind", [Counters, Background])
def test_two_halves_give_the_rollout_of_one_vector(kind: type[Counters], core: str) -> None:
    whole, halved = Stage(Counters, 1, core), Stage(kind, 2, core)
    for _ in range(3):
        one = whole.round()
        assert one["truncated"].any()
        assert one["terminated"].any()
        assert_same(halved.round(), one)
    assert (halved.block.batch.version == 3).all()


def test_one_half_steps_while_the_other_gets_its_actions() -> None:
    stage = Stage(Background, 2, "none")
    stage.round()
    told = [line for line in stage.diary if "step" not in line]
    assert told[:6] == ["begin 0", "begin 3", "finish 0", "begin 0", "finish 3", "begin 3"]
    assert told[-2:] == ["finish 0", "finish 3"]
    assert told.count("begin 0") == told.count("finish 3") == T
    stage.actor.close()
    assert stage.diary[-2:] == ["close 0", "close 3"]


def test_a_vector_that_steps_in_the_background_is_known_by_what_it_offers() -> None:
    assert isinstance(Background(0, 1, []), BackgroundVectorEnv)
    assert not isinstance(Counters(0, 1, []), BackgroundVectorEnv)


def test_halves_are_saved_and_go_on_exactly() -> None:
    straight, other = Stage(Background, 2, "lstm"), Stage(Background, 2, "lstm")
    straight.round()
    saved = deepcopy(straight.actor.save_episodes())
    assert saved is not None
    expected = straight.round()
    other.actor.load_episodes(saved)
    found = other.round()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_a_state_of_another_number_of_halves_is_refused() -> None:
    one, two = Stage(Counters, 1, "none"), Stage(Counters, 2, "none")
    for mine, theirs in ((one, two), (two, one)):
        mine.round()
        saved = mine.actor.save_episodes()
        assert saved is not None
        with pytest.raises(UserError, match=r"another number of env\.halves"):
            theirs.actor.load_episodes(saved)


@pytest.mark.parametrize(("halves", "num_envs"), [(0, 4), (3, 6), (2, 5)])
def test_halves_that_cannot_be_are_refused(halves: int, num_envs: int) -> None:
    with pytest.raises(UserError, match=r"env\.halves is"):
        EnvConfig(id="CartPole-v1", num_envs=num_envs, halves=halves)


def test_a_run_in_halves_learns_what_a_whole_one_learns(tmp_path: Path) -> None:
    """Environments in a loop cannot step in the background; the weights are the same anyway."""
    runs = [
        rookery.train(
            "tests.toy_worlds:Mirror",
            run=tmp_path / f"{halves}",
            env={"halves": halves, "backend": "serial"},
            envs=4,
            steps=128,
            eval={"episodes": 0},
        )
        for halves in (1, 2)
    ]
    weights = [np.frombuffer(final_bytes(run, "weights")[-4000:], np.float32) for run in runs]
    np.testing.assert_allclose(*weights, atol=1e-5)
