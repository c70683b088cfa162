"""The actor writes down what happened, and the learner what it did with it.

Shapes: T rollout steps, B environments.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rookery.algos.a2c import A2CConfig
from rookery.algos.algorithm import build_algorithm
from rookery.core.errors import RunFailed, UserError
from rookery.core.ports import End
from rookery.core.schedule import LinearSchedule
from rookery.core.spec import Array, Arrays, LeafSpec, LeafSpecs
from rookery.envs.transition import StepResult
from rookery.nets.actor_critic import ActorCritic
from rookery.params.flat import FlatParams
from rookery.params.optimizer import OptimizerConfig
from rookery.roles.actor import Actor
from rookery.roles.learner import Learner
from rookery.transport.blocks import BlockSink, BlockSource, RolloutBlock
from rookery.transport.weights import WeightsCell
from tests.rollouts import FLOAT, empty_rollout, random_rollout, small_policy
from tests.wired import got, weights_cell

T, B = 6, 3
BOX = LeafSpec("box", (2,), FLOAT, (), np.full(2, 0.0, FLOAT), np.full(2, 10.0, FLOAT))
CPU = torch.device("cpu")


class ScriptedEnvs:
    """Random observations and rewards; episodes end, and steps are spent on resets, by script."""

    num_envs = B
    action_leaf = BOX

    def __init__(self) -> None:
        self.obs_leaves: LeafSpecs = {"obs": LeafSpec("box", (3,), FLOAT)}
        self.lost_episodes: Array = np.zeros(0, np.int64)
        self.rng = np.random.default_rng(0)
        self.obs: list[Arrays] = []
        self.actions: list[Array] = []
        self.results: list[StepResult] = []

    def reset(self) -> Arrays:
        self.obs.append(self._observe())
        return self.obs[-1]

    def step(self, actions: Array) -> StepResult:
        self.actions.append(actions.copy())
        t = len(self.results)
        terminated, truncated = np.zeros(B, np.bool_), np.zeros(B, np.bool_)
        valid = np.ones(B, np.bool_)
        terminated[0] = t in (1, 7)
        truncated[1] = t in (3, 4)
        truncated[2] = t == 5
        reset = terminated | truncated
        if t == 2:
            reset[2], valid[2] = True, False
        ended = bool((terminated | truncated).any())
        result = StepResult(
            obs=self._observe(),
            reward=self.rng.normal(size=B) * valid,
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            reset=reset,
            final_obs=self._observe() if ended else None,
            info={"score": np.full(B, float(t))} if ended else {},
        )
        self.results.append(result)
        self.obs.append(result.obs)
        return result

    def _observe(self) -> Arrays:
        return {"obs": self.rng.normal(size=(B, 3)).astype(np.float32)}

    def state_dict(self) -> tuple[Arrays, dict[str, Any]] | None:
        return None

    def load_state_dict(self, arrays: Arrays, data: dict[str, Any]) -> Arrays:
        raise NotImplementedError

    def close(self) -> None:
        self.actions.clear()


class Stage:
    """An actor over a block of one slot, and everything it touches."""

    def __init__(self, core: str, envs: ScriptedEnvs | None = None) -> None:
        self.envs = envs or ScriptedEnvs()
        self.policy = small_policy(core, BOX)
        rollout = empty_rollout(self.policy, T, B)
        rollout.info["score"] = np.zeros((T, B), np.float32)
        arrays = {
            name: np.full_like(array, 1 if array.dtype == bool else 77)
            for name, array in rollout.flat().items()
        }
        self.block = RolloutBlock(arrays, np.zeros(1, np.int64), num_actors=1, num_envs=B)
        self.cell = weights_cell(FlatParams(small_policy(core, BOX)).tensors())
        self.source = BlockSource(self.block, End({}))
        self.actor = Actor(
            envs=self.envs,
            policy=small_policy(core, BOX, seed=9),
            sink=BlockSink(self.block, End({})),
            params=self.cell,
            rng=np.random.default_rng(3),
            device=CPU,
        )

    def publish(self, version: int = 0) -> None:
        self.cell.publish(version, FlatParams(self.policy).tensors())

    def round(self) -> None:
        assert self.actor.ready()
        self.actor.step()


@pytest.fixture(params=["none", "lstm"])
def stage(request: pytest.FixtureRequest) -> Stage:
    stage = Stage(request.param)
    stage.publish()
    return stage


def rows(stage: Stage, name: str, first: int = 0) -> Array:
    return np.stack([getattr(result, name) for result in stage.envs.results[first : first + T]])


def test_an_actor_waits_for_weights_and_for_room() -> None:
    stage = Stage("none")
    assert not stage.actor.ready(), "no weights yet"
    stage.publish()
    stage.round()
    assert not stage.actor.ready(), "no room"
    stage.source.release()
    assert stage.actor.ready()


def test_an_actor_acts_with_the_newest_weights(stage: Stage) -> None:
    stage.round()
    assert stage.actor.weights.version == 0
    torch.testing.assert_close(stage.actor.weights.flat.data, FlatParams(stage.policy).data)
    stage.policy = small_policy("lstm" if stage.policy.recurrent else "none", BOX, seed=4)
    stage.publish(version=5)
    stage.source.release()
    stage.round()
    assert stage.actor.weights.version == 5
    torch.testing.assert_close(stage.actor.weights.flat.data, FlatParams(stage.policy).data)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_rollout_is_what_happened(stage: Stage, rounds: int) -> None:
    for _ in range(rounds):
        stage.source.release()
        stage.round()
    first = (rounds - 1) * T
    rollout, envs = stage.block.batch, stage.envs
    seen = np.stack([obs["obs"] for obs in envs.obs[first : first + T + 1]])
    np.testing.assert_array_equal(rollout.obs["obs"], seen)
    np.testing.assert_array_equal(rollout.reset[1:], rows(stage, "reset", first))
    before = np.ones(B) if first == 0 else envs.results[first - 1].reset
    np.testing.assert_array_equal(rollout.reset[0], before)
    for field, name in (
        ("reward", "reward"),
        ("terminated", "terminated"),
        ("truncated", "truncated"),
        ("mask", "valid"),
    ):
        expected = rows(stage, name, first)
        np.testing.assert_allclose(getattr(rollout, field), expected, rtol=1e-6, err_msg=field)
    given = np.stack(envs.actions[first : first + T])
    np.testing.assert_allclose(given, 5 * (np.clip(rollout.action, -1, 1) + 1), rtol=1e-5)
    assert np.abs(rollout.action).max() > 1, "what the policy chose, not what fits the bounds"


def test_a_rollout_holds_the_log_probabilities_and_values_of_its_policy(stage: Stage) -> None:
    """Row by row as the learner will compute them, from the state stored with the rollout."""
    policy = stage.policy
    for _ in range(2):
        stage.source.release()
        stage.round()
        rollout = stage.block.batch
        obs, reset = torch.from_numpy(rollout.obs["obs"]), torch.from_numpy(rollout.reset)
        state = {name: torch.from_numpy(leaf) for name, leaf in rollout.state.items()}
        shape = (T + 1, B)
        dist, value = unroll(policy, obs, state, reset)
        np.testing.assert_allclose(value.view(shape), rollout.value, atol=1e-5)
        dist, _ = unroll(policy, obs[:-1], state, reset[:-1])
        action = torch.from_numpy(rollout.action)
        log_prob = dist.log_prob(action if policy.recurrent else action.flatten(0, 1)).detach()
        np.testing.assert_allclose(log_prob.view(T, B), rollout.log_prob, atol=1e-4)


@torch.no_grad()
def unroll(policy: ActorCritic, obs: Any, state: Any, reset: Any) -> Any:
    if policy.recurrent:
        return policy.unroll({"obs": obs}, state, reset)
    return policy.unroll({"obs": obs.flatten(0, 1)}, {}, reset)


def test_a_cut_episode_is_worth_the_value_of_its_own_last_observation(stage: Stage) -> None:
    """With the memory of the episode that was cut, not of the one that begins."""
    stage.round()
    rollout, policy = stage.block.batch, stage.policy
    state = {name: torch.from_numpy(leaf) for name, leaf in rollout.state.items()}
    expected = np.zeros((T, B))
    with torch.no_grad():
        for t, result in enumerate(stage.envs.results):
            now = {"obs": torch.from_numpy(rollout.obs["obs"][t])}
            reset = torch.from_numpy(rollout.reset[t])
            _, state = policy.step(now, state, reset, None)
            if result.final_obs is not None:
                final = {"obs": torch.from_numpy(result.final_obs["obs"])}
                value = policy.value(final, state, torch.zeros(B, dtype=torch.bool)).numpy()
                expected[t] = np.where(result.truncated, value, 0.0)
    assert np.count_nonzero(expected) == 3
    np.testing.assert_allclose(rollout.final_value, expected, atol=1e-5)


def test_episodes_are_summed_over_rollouts_and_told_where_they_end(stage: Stage) -> None:
    returns, lengths = np.zeros(B), np.zeros(B, int)
    for first in (0, T):
        stage.source.release()
        stage.round()
        rollout = stage.block.batch
        for t, result in enumerate(stage.envs.results[first : first + T]):
            returns += result.reward
            lengths += result.valid
            ended = result.terminated | result.truncated
            np.testing.assert_allclose(rollout.episode_return[t][ended], returns[ended], rtol=1e-5)
            assert np.isnan(rollout.episode_return[t][~ended]).all()
            np.testing.assert_array_equal(rollout.episode_length[t], np.where(ended, lengths, 0))
            np.testing.assert_array_equal(
                rollout.info["score"][t][ended], np.full(int(ended.sum()), float(first + t))
            )
            returns[ended] = lengths[ended] = 0


def test_info_is_told_only_where_an_episode_ended(stage: Stage) -> None:
    stage.round()
    rollout = stage.block.batch
    ended = rollout.terminated | rollout.truncated
    assert np.isnan(rollout.info["score"][~ended]).all()


# --- the learner -----------------------------------------------------------------------------


def learner_over(
    policy: ActorCritic, config: OptimizerConfig | None = None, acting: ActorCritic | None = None
) -> tuple[Learner, RolloutBlock, WeightsCell]:
    """A learner with a filled block before it, made by ``acting`` (else by ``policy`` itself)."""
    rollout = random_rollout(
        acting or policy,
        np.random.default_rng(0),
        num_steps=T,
        num_envs=B,
        spend_steps_on_resets=True,
    )
    rollout.episode_return[:] = np.nan
    block = RolloutBlock(rollout.flat(), np.ones(1, np.int64), num_actors=1, num_envs=B)
    cell = weights_cell(FlatParams(copy.deepcopy(policy)).tensors())
    learner = Learner(
        policy=policy,
        algorithm=build_algorithm("a2c", A2CConfig(), recurrent=policy.recurrent, device=CPU),
        optimizer=config or OptimizerConfig(lr=0.1),
        source=BlockSource(block, End({})),
        params=cell,
        rng=np.random.default_rng(0),
    )
    return learner, block, cell


def test_an_update_learns_publishes_and_gives_the_memory_back() -> None:
    learner, block, cell = learner_over(small_policy())
    assert got(cell) is None
    learner.start()
    assert cell.version == 0
    before = learner.flat.data.clone()
    assert learner.ready()
    update = learner.step()
    assert not torch.equal(before, learner.flat.data)
    assert not learner.ready()
    assert (cell.version, update.updates) == (1, 1)
    assert torch.equal(cell.values["params"], learner.flat.data)
    assert update.steps == learner.steps == block.batch.num_steps < T * B
    assert {"train/policy_loss", "train/grad_norm", "train/lr"} <= set(update.metrics)
    assert all(math.isfinite(value) for value in update.metrics.values())


def test_an_update_tells_of_the_episodes_that_ended() -> None:
    learner, block, _ = learner_over(small_policy())
    block.batch.episode_length[2, 1], block.batch.episode_return[2, 1] = 40, 3.5
    block.batch.episode_length[4, 0], block.batch.episode_return[4, 0] = 7, -1.0
    update = learner.step()
    assert update.returns.tolist() == [3.5, -1.0]
    assert update.lengths.tolist() == [40, 7]


def test_the_learning_rate_follows_its_schedule_over_steps() -> None:
    falling = LinearSchedule(start=0.2, end=0.0, until_steps=1000)
    learner, _, _ = learner_over(small_policy(), OptimizerConfig(lr=falling))
    learner.steps = 500
    before = learner.flat.data.clone()
    assert learner.step().metrics["train/lr"] == pytest.approx(0.1)
    # The first step of Adam moves every weight that has a gradient by the learning rate.
    moved = (learner.flat.data - before).abs()
    assert float(moved.max()) == pytest.approx(0.1, rel=0.05)


def test_a_gradient_that_is_not_a_number_ends_the_run_with_advice() -> None:
    learner, block, _ = learner_over(small_policy())
    block.batch.reward[0, 0] = np.nan
    block.batch.mask[0, 0] = True
    with pytest.raises(RunFailed, match="lower --lr"):
        learner.step()


def test_a_learner_goes_on_from_its_saved_state() -> None:
    """Bit for bit, with its optimizer and its randomness."""
    learner, _, _ = learner_over(small_policy("gru"))
    learner.step()
    saved = {
        name: replace(
            part, arrays={key: torch.as_tensor(a).clone() for key, a in part.arrays.items()}
        )
        for name, part in learner.save_state().items()
    }
    other, _, _ = learner_over(small_policy("gru", seed=8), acting=small_policy("gru"))
    other.load_state(saved)
    assert (other.steps, other.updates) == (learner.steps, learner.updates)
    for each in (learner, other):
        each.step()
    assert torch.equal(learner.flat.data, other.flat.data)
    assert learner.rng.random() == other.rng.random()


def test_the_weights_of_another_network_are_refused() -> None:
    learner, _, _ = learner_over(small_policy("gru"))
    other, _, _ = learner_over(small_policy())
    with pytest.raises(UserError, match="another network"):
        other.load_state(learner.save_state())


class WithLives(ScriptedEnvs):
    """What is terminated is a lost life; the episode goes on."""

    def step(self, actions: Array) -> StepResult:
        result = super().step(actions)
        if result.final_obs is not None:
            result.whole_ended = result.truncated.copy()
        return result


def test_a_lost_life_is_an_end_for_the_learner_and_not_for_the_record() -> None:
    stage = Stage("none", WithLives())
    stage.publish()
    stage.round()
    rollout = stage.source.sample()
    assert rollout.terminated[1, 0]
    assert rollout.reset[2, 0]
    assert not rollout.episode_length[:, 0].any()
    assert np.isnan(rollout.episode_return[:, 0]).all()
    assert np.isnan(rollout.info["score"][1, 0])
    assert rollout.episode_length[3, 1] == 4
    stage.source.release()
    stage.round()
    later = stage.source.sample()
    assert not later.episode_length[1, 0], "two lives later the episode still goes on"
