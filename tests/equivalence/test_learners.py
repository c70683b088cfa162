"""Several learners that divide a batch learn what one learns from all of it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rookery.algos.dqn import DQN, R2D2, DQNConfig, R2D2Config
from rookery.core.errors import UserError
from rookery.core.group import Alone, Group, share_of
from rookery.core.ports import End
from rookery.core.sequence import StepSpec
from rookery.core.signature import Signature
from rookery.core.spec import Array, Arrays, zeros
from rookery.envs.spaces import action_leaf, obs_leaves
from rookery.nets.policy import PolicyConfig
from rookery.nets.q_network import QNetwork
from rookery.params.flat import FlatParams
from rookery.params.optimizer import FlatOptimizer, OptimizerConfig
from rookery.params.sharded import ShardedOptimizer, Shards, shard_specs
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_python
from rookery.roles.replay_learner import ReplayLearner
from rookery.transport.sample_slots import (
    DONE,
    FILLED,
    TAKEN,
    SampleSlots,
    SlotSource,
    sample_slot_specs,
)
from tests.unit.test_group import together
from tests.wired import step_spec_of, weights_cell

CPU = torch.device("cpu")
SLOTS, BATCH, WIDTH = 4, 7, 2
SIGNATURE = Signature(
    obs=obs_leaves(spaces.Box(-9.0, 9.0, (3,), np.float32)), action=action_leaf(spaces.Discrete(4))
)
COMMON: dict[str, Any] = {"batch_size": BATCH, "target_every": 2, "learning_starts": 100}
KINDS: dict[str, tuple[type[DQN], DQNConfig, PolicyConfig]] = {
    "dqn": (
        DQN,
        DQNConfig(**COMMON, n_step=3, priority_exponent=0.6),
        PolicyConfig(hidden=(16,), normalize_obs=True),
    ),
    "r2d2": (
        R2D2,
        R2D2Config(**COMMON, length=5, burn_in=2, n_step=2),
        PolicyConfig(hidden=(8,), core="lstm", core_size=8),
    ),
}


OPTIMIZERS = {
    "dqn": OptimizerConfig(lr=1e-3),
    "r2d2": OptimizerConfig(name="rmsprop", lr=1e-3, max_grad_norm=None),
}


def filled_slots(spec: StepSpec, num_steps: int) -> Arrays:
    """Slots with a batch each, of sequences of unequal lengths."""
    specs = sample_slot_specs(
        spec, num_slots=SLOTS, num_steps=num_steps, batch_size=BATCH, episode_width=WIDTH
    )
    arrays, rng = zeros(specs), np.random.default_rng(0)
    for name, array in arrays.items():
        if name.startswith("slot/") and array.dtype.kind == "f":
            array[:] = rng.normal(size=array.shape)
    arrays["slot/action"][:] = rng.integers(4, size=arrays["slot/action"].shape)
    lengths = rng.integers(num_steps // 2 + 1, num_steps + 1, (SLOTS, 1, BATCH))
    arrays["slot/mask"][:] = np.arange(num_steps)[:, None] < lengths
    arrays["probability"][:] = rng.uniform(0.01, 0.1, (SLOTS, BATCH))
    arrays["header"][:, 0], arrays["header"][:, 1] = FILLED, np.arange(SLOTS)
    arrays["header"][:, 3] = 1_000 * np.arange(1, SLOTS + 1)
    return arrays


def learned(
    kind: str, group: Group, policy: QNetwork, arrays: Arrays, shared: Arrays | None = None
) -> ReplayLearner:
    """A learner that has learned from all batches."""
    cls, config, _ = KINDS[kind]
    learner = ReplayLearner(
        policy=policy,
        algorithm=cls(config, recurrent=policy.recurrent, device=CPU),
        optimizer=OPTIMIZERS[kind],
        source=SlotSource(SampleSlots(arrays), End(arrays, group.rank)),
        params=weights_cell(FlatParams(copy.deepcopy(policy)).tensors()),
        shards=None if shared is None else Shards(shared, group),
    )
    learner.start()
    for _ in range(SLOTS):
        learner.step()
    return learner


def weights(learner: ReplayLearner) -> Array:
    flat: Array = learner.flat.data.numpy().copy()
    return flat


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [2, 3])
def test_learners_together_learn_what_one_learns(kind: str, size: int) -> None:
    _, config, settings = KINDS[kind]
    policy = QNetwork(settings, SIGNATURE)
    arrays = filled_slots(step_spec_of(config, policy), config.sequence.num_steps)
    begun = np.concatenate([leaf.detach().numpy().ravel() for leaf in policy.parameters()])
    alone_arrays = {name: array.copy() for name, array in arrays.items()}
    alone = learned(kind, Alone(), copy.deepcopy(policy), alone_arrays)
    copies = [copy.deepcopy(policy) for _ in range(size)]
    num_params = sum(leaf.numel() for leaf in policy.parameters())
    shared = zeros(shard_specs(size, num_params, OPTIMIZERS[kind]))
    members = together(size, lambda group: learned(kind, group, copies[group.rank], arrays, shared))
    assert np.abs(weights(alone) - begun).max() > 1e-3, "something was learned"
    for member in members:
        np.testing.assert_array_equal(weights(member), weights(members[0]))
        np.testing.assert_allclose(weights(member), weights(alone), atol=2e-5)
        assert (member.steps, member.updates) == (1_000 * SLOTS, SLOTS)
    np.testing.assert_allclose(arrays["priorities"], alone_arrays["priorities"], rtol=2e-3)
    assert (alone_arrays["header"][:, 0] == DONE).all()
    # The last batch goes back when the learners meet to take another.
    assert arrays["header"][:, 0].tolist() == [DONE] * (SLOTS - 1) + [TAKEN]


def test_a_batch_is_divided_without_a_rest() -> None:
    class Member(Alone):
        def __init__(self, rank: int, size: int) -> None:
            super().__init__(rank)
            self.size = size

    for num, size in ((7, 3), (32, 2), (3, 3), (5, 1)):
        columns = np.arange(num)
        parts = [columns[share_of(num, Member(rank, size))] for rank in range(size)]
        np.testing.assert_array_equal(np.concatenate(parts), columns)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_each_steps_its_part_as_one_steps_all(name: Any) -> None:
    """Also where modules learn at rates of their own, which the parts cut through."""
    config = OptimizerConfig(name=name, amsgrad=name == "adam", lr=1e-2, max_grad_norm=0.5)
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    num_params = sum(leaf.numel() for leaf in module.parameters())
    scales = [(slice(10, 50), 0.1), (slice(60, num_params), 3.0)]
    drawn = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 2, num_params))).float()
    alone = FlatParams(copy.deepcopy(module))
    one = FlatOptimizer(config, alone, scales)
    norms = []
    for gradients in drawn:
        alone.grad.copy_(gradients.sum(0))
        norms.append(float(one.step(1e-2)))
    shared = zeros(shard_specs(2, num_params, config))
    copies = [copy.deepcopy(module) for _ in range(2)]

    def play(group: Group) -> list[float]:
        shards = Shards(shared, group)
        flat = FlatParams(copies[group.rank], shards.weights, shards.gradient)
        optimizer = ShardedOptimizer(config, flat, shards, scales)
        shards.meet()
        found = []
        for gradients in drawn:
            flat.grad.copy_(gradients[group.rank])
            found.append(float(optimizer.step(1e-2)))
        return found

    for found in together(2, play):
        assert found == pytest.approx(norms, rel=1e-5)
    np.testing.assert_allclose(shared["weights"], alone.data.numpy(), atol=1e-6)


def test_learners_that_cannot_share_are_refused() -> None:
    def plan(**given: Any) -> None:
        flags = {"algo": "dqn", "engine": "local", "learners": 3, **given}
        Plan.of(settings_from_python("CartPole-v1", flags)).program()

    plan()
    with pytest.raises(UserError, match=r"replay.num_learners: 3 .* 2 sequences \(dqn.batch"):
        plan(**{"dqn.batch_size": 2})
    with pytest.raises(UserError, match=r"not on cuda:0; --learners 1, or --device cpu"):
        plan(device="cuda:0")
