"""N actors of B environments learn what one actor of N * B environments learns.

Tolerance: everything is float32, and a matrix product over other numbers of rows adds in another
order. Gradients here are of order 0.1 and must agree to 1e-5, and so must rollouts and weights
through three updates; on the machine this was written on no difference exceeded 3e-7.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from rookery.algos.a2c import A2CConfig
from rookery.algos.on_policy import OnPolicyConfig
from rookery.algos.ppo import PPOConfig
from rookery.core.ports import End
from rookery.core.records import Rollout
from rookery.core.seeding import stream
from rookery.core.spec import Array
from rookery.envs.make import EnvConfig
from rookery.formations.sync import SyncConfig
from rookery.nets.policy import PolicyConfig
from rookery.params.optimizer import OptimizerConfig
from rookery.roles.actor import Actor
from rookery.roles.learner import Learner
from rookery.runs.config import RunConfig
from rookery.transport.blocks import BlockSink
from tests.wired import Crew

N, B = 3, 2
STEPS = 25
ATOL = 1e-5

ALGORITHMS: dict[str, OnPolicyConfig] = {
    "a2c": A2CConfig(rollout_steps=STEPS, normalize_reward=True),
    "ppo": PPOConfig(rollout_steps=STEPS, num_epochs=2, num_minibatches=3, clip_value=0.2),
}
CORES = pytest.mark.parametrize("core", ["none", "gru", "lstm"])


class JoinedNoise:
    """The noise of several actors, side by side: each environment gets what it would have got."""

    def __init__(self, generators: list[np.random.Generator]) -> None:
        self.generators = generators

    def standard_exponential(self, size: tuple[int, ...], dtype: Any) -> Array:
        rows = (size[0] // len(self.generators), *size[1:])
        return np.concatenate([g.standard_exponential(rows, dtype) for g in self.generators])


def run_config(name: str, core: str, num_actors: int, num_envs: int) -> RunConfig:
    """CartPole cut after 15 steps, so that rollouts hold both kinds of ends.

    Serial: there an environment's seeds depend on its number in the run, not on its actor.
    """
    whole = num_actors * num_envs
    env = EnvConfig(id="CartPole-v1", num_envs=whole, max_episode_steps=15, backend="serial")
    return RunConfig(
        env=env,
        algo=name,
        algo_config=ALGORITHMS[name],
        formation_config=SyncConfig(num_actors=num_actors),
        policy=PolicyConfig(core=cast(Any, core), core_size=8, hidden=(16,), normalize_obs=True),
        optimizer=OptimizerConfig(lr=1e-2),
        seed=5,
    )


class Formation:
    """Actors and a learner around a block, stepped by hand."""

    def __init__(self, config: RunConfig) -> None:
        crew = Crew(config)
        self.learner: Learner = crew.role("learner")
        self.actors: list[Actor] = crew.roles("actor")
        self.block = self.learner.source.block  # type: ignore[attr-defined]
        self.learner.start()

    def act(self) -> Rollout:
        """One round of every actor; the batch."""
        for actor in self.actors:
            assert actor.ready()
            actor.step()
        assert self.learner.ready()
        return self.block.batch

    def learn(self) -> None:
        """One update."""
        self.learner.step()

    def gradient(self, rollout: Rollout | None = None) -> Array:
        """Of the loss over a whole batch, at the present weights."""
        learner = self.learner
        batch = learner.algorithm.prepare(rollout or self.block.batch)
        batch = batch if learner.policy.recurrent else batch.flatten()
        learner.flat.zero_grad()
        learner.algorithm.loss(learner.policy, batch, learner.steps)[0].backward()  # type: ignore[no-untyped-call]
        return learner.flat.grad.numpy().copy()


def many(name: str, core: str) -> Formation:
    return Formation(run_config(name, core, N, B))


def one(name: str, core: str) -> Formation:
    """One actor of N * B environments, with the environments and the noise of N actors."""
    formation = Formation(run_config(name, core, 1, N * B))
    noise: Any = JoinedNoise([stream(5, "actor", actor) for actor in range(N)])
    formation.actors[0].rng = noise
    return formation


@pytest.mark.slow
@CORES
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_many_actors_and_one_with_all_their_environments_learn_the_same(
    name: str, core: str
) -> None:
    formations = many(name, core), one(name, core)
    for _ in range(3):
        first, second = (formation.act() for formation in formations)
        assert first.truncated.any()
        assert first.terminated.any()
        for field, array in first.flat().items():
            np.testing.assert_allclose(array, second.flat()[field], atol=ATOL, err_msg=field)
        for formation in formations:
            formation.learn()
        grads = [formation.learner.flat.grad.numpy() for formation in formations]
        np.testing.assert_allclose(grads[0], grads[1], atol=ATOL)
        assert np.abs(grads[0]).max() > 1e-2
    weights = [formation.learner.flat.data.numpy() for formation in formations]
    np.testing.assert_allclose(weights[0], weights[1], atol=ATOL)
    assert [formation.learner.steps for formation in formations] == [3 * N * B * STEPS] * 2


@CORES
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_gradient_on_a_block_is_that_on_the_same_data_of_one_actor(
    name: str, core: str
) -> None:
    """The same rollouts, put through N slots and through one."""
    filled, single = many(name, core), Formation(run_config(name, core, 1, N * B))
    rollout = filled.act()
    sink = BlockSink(single.block, End({}))
    memory = sink.reserve()
    for field, array in rollout.flat().items():
        memory.flat()[field][:] = array
    sink.put(memory)
    assert single.learner.ready()
    np.testing.assert_allclose(filled.gradient(), single.gradient(), atol=ATOL)


@CORES
def test_the_gradient_of_a2c_is_the_mean_of_the_actors_own(core: str) -> None:
    """As if each worker had computed its own gradient and all had been averaged."""
    name = "a2c"
    plain = replace(ALGORITHMS[name], normalize_reward=False)
    formation = Formation(replace(run_config(name, core, N, B), algo_config=plain))
    formation.act()
    whole = formation.gradient()
    own = [formation.gradient(slot) for slot in formation.block.slots]
    np.testing.assert_allclose(np.mean(own, 0), whole, atol=ATOL)
    assert max(float(np.abs(part - whole).max()) for part in own) > 100 * ATOL


def test_the_order_of_actors_does_not_matter_to_the_gradient() -> None:
    formation = many("ppo", "gru")
    rollout = formation.act()
    whole = formation.gradient()
    order = [2, 0, 1]
    columns = np.concatenate([np.arange(actor * B, (actor + 1) * B) for actor in order])
    shuffled = Rollout.from_flat(
        {
            field: array[columns] if field.startswith(("state/", "version")) else array[:, columns]
            for field, array in rollout.flat().items()
        }
    )
    np.testing.assert_allclose(formation.gradient(shuffled), whole, atol=ATOL)


def test_the_gate_would_see_other_data() -> None:
    """Actors that share their noise make another gradient, far beyond the tolerance."""
    formations = many("a2c", "none"), one("a2c", "none")
    noise: Any = JoinedNoise([stream(5, "actor", 0) for _ in range(N)])
    formations[1].actors[0].rng = noise
    for formation in formations:
        formation.act()
    first, second = (formation.gradient() for formation in formations)
    assert np.abs(first - second).max() > 100 * ATOL
    assert torch.equal(formations[0].learner.flat.data, formations[1].learner.flat.data)
