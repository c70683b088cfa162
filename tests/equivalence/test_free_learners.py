"""Learners that wait for nobody: one alone learns what the plain one learns; two share it all."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from rookery.core.group import Alone
from rookery.core.ports import End
from rookery.core.spec import Arrays, zeros
from rookery.nets.normalizer import moments_in
from rookery.nets.q_network import QNetwork
from rookery.params.flat import FlatParams
from rookery.params.hogwild import APPLIED, GOING, HogwildMemory, hogwild_specs
from rookery.roles.free_learner import FreeLearner
from rookery.roles.replay_learner import ReplayLearner
from rookery.transport.sample_slots import DONE, FILLED, SampleSlots, SlotSource
from tests.equivalence.test_learners import (
    CPU,
    KINDS,
    OPTIMIZERS,
    SIGNATURE,
    SLOTS,
    filled_slots,
    learned,
    weights,
)
from tests.wired import got, step_spec_of, weights_cell


def shared_memory(kind: str, policy: QNetwork, num_learners: int) -> HogwildMemory:
    num_params = sum(leaf.numel() for leaf in policy.parameters())
    moments = {name: tuple(each.mean.shape) for name, each in moments_in(policy).items()}
    specs = hogwild_specs(
        num_learners, num_params, OPTIMIZERS[kind], moments, shared_statistics=True
    )
    return HogwildMemory(zeros(specs))


def free_learners(
    kind: str, policy: QNetwork, arrays: Arrays, num_learners: int
) -> list[FreeLearner]:
    cls, config, _ = KINDS[kind]
    memory = shared_memory(kind, policy, num_learners)
    return [
        FreeLearner(
            memory=memory,
            worker=worker,
            policy=copy.deepcopy(policy),
            algorithm=cls(config, recurrent=policy.recurrent, device=CPU),
            optimizer=OPTIMIZERS[kind],
            source=SlotSource(SampleSlots(arrays), End(arrays, worker), stride=num_learners),
            params=weights_cell(FlatParams(copy.deepcopy(policy)).tensors()),
        )
        for worker in range(num_learners)
    ]


def policy_and_batches(kind: str) -> tuple[QNetwork, Arrays]:
    _, config, settings = KINDS[kind]
    policy = QNetwork(settings, SIGNATURE)
    return policy, filled_slots(step_spec_of(config, policy), config.sequence.num_steps)


def everything(learner: ReplayLearner) -> dict[str, Any]:
    parts = learner.save_state()
    return {
        f"{part}/{name}": np.asarray(array)
        for part, state in parts.items()
        for name, array in state.arrays.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_one_alone_is_the_plain_learner(kind: str) -> None:
    policy, arrays = policy_and_batches(kind)
    plain = learned(kind, Alone(), copy.deepcopy(policy), {n: a.copy() for n, a in arrays.items()})
    (free,) = free_learners(kind, policy, arrays, 1)
    free.start()
    for _ in range(SLOTS):
        free.step()
    assert (free.steps, free.updates) == (plain.steps, plain.updates)
    theirs = everything(plain)
    for name, array in everything(free).items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_two_share_weights_counts_statistics_and_not_batches(kind: str) -> None:
    policy, arrays = policy_and_batches(kind)
    first, second = free_learners(kind, policy, arrays, 2)
    memory = first.memory
    first.start()
    assert memory.state == GOING
    second.start()
    assert second.ready()
    np.testing.assert_array_equal(weights(first), weights(second))

    first.step()
    taken = arrays["header"][:, 0].tolist()
    assert taken == [DONE, FILLED, FILLED, FILLED]
    targets = [learner.target_flat.data.clone() for learner in (first, second)]
    stale = second.step()  # from weights that the first has stepped since
    assert stale.metrics["train/staleness"] == 1.0
    assert arrays["header"][:, 0].tolist() == [DONE, DONE, FILLED, FILLED]
    assert memory.total(APPLIED) == second.updates == 2
    np.testing.assert_array_equal(weights(second), memory.weights.numpy())
    # Two updates of both together are one interval of the target network.
    assert not np.array_equal(second.target_flat.data, targets[1])
    np.testing.assert_array_equal(first.target_flat.data, targets[0])
    first.step()
    assert not np.array_equal(first.target_flat.data, targets[0])
    second.step()
    assert not first.ready()
    assert not second.ready()
    assert (arrays["priorities"] > 0).all()
    for name, pool in second.pools.items():
        seen = second.moments[name].count
        assert seen == pool.merged().count > first.pools[name].own.count


def test_only_the_first_publishes_and_restores_what_is_shared() -> None:
    policy, arrays = policy_and_batches("dqn")
    first, second = free_learners("dqn", policy, arrays, 2)
    first.start()
    second.start()
    assert second.ready()
    for learner in (first, second):
        learner.step()
    assert first.params.version == 1  # type: ignore[attr-defined]
    assert got(second.params) is None  # type: ignore[arg-type]
    saved = first.save_state()
    first.step()
    moved = first.optimizer.state["exp_avg"].clone()
    second.load_state(saved)
    np.testing.assert_array_equal(first.optimizer.state["exp_avg"], moved)
    first.load_state(saved)
    np.testing.assert_array_equal(
        first.optimizer.state["exp_avg"], np.asarray(saved["optimizer"].arrays["exp_avg"])
    )


def test_a_resumed_run_goes_on_with_its_statistics_and_counts() -> None:
    policy, arrays = policy_and_batches("dqn")
    (before,) = free_learners("dqn", policy, arrays, 1)
    before.start()
    before.step()
    before.step()
    saved = before.save_state()
    first, second = free_learners("dqn", policy, filled_again(arrays), 2)
    for learner in (first, second):
        learner.load_state(saved)
    first.start()
    second.start()
    assert second.ready()
    assert first.updates == second.updates == 2
    for learner in (first, second):
        np.testing.assert_array_equal(weights(learner), weights(before))
        for name, moments in before.moments.items():
            assert learner.moments[name].count == moments.count
            np.testing.assert_allclose(learner.moments[name].mean, moments.mean)
    first.step()
    assert first.updates == 3


def test_what_is_saved_is_not_what_others_write() -> None:
    policy, arrays = policy_and_batches("dqn")
    first, second = free_learners("dqn", policy, arrays, 2)
    first.start()
    second.start()
    assert second.ready()
    first.step()
    saved = first.save_state()
    before = np.asarray(saved["optimizer"].arrays["exp_avg"]).copy()
    second.step()  # as while the checkpoint is being written
    np.testing.assert_array_equal(saved["optimizer"].arrays["exp_avg"], before)


def test_who_begins_late_moves_its_target_all_the_same() -> None:
    policy, arrays = policy_and_batches("dqn")
    first, second = free_learners("dqn", policy, arrays, 2)
    first.start()
    first.step()
    first.step()  # the target of both is due
    begun = second.target_flat.data.clone()
    second.start()
    assert second.ready()
    assert second.updates == 2
    assert not np.array_equal(second.target_flat.data, begun)


def test_the_first_ends_with_what_all_have_done() -> None:
    policy, arrays = policy_and_batches("dqn")
    first, second = free_learners("dqn", policy, arrays, 2)
    first.start()
    second.start()
    assert second.ready()
    first.step()
    second.step()
    first.catch_up()
    saved = first.save_state()
    assert saved["learner"].data["updates"] == 2
    np.testing.assert_array_equal(weights(first), first.memory.weights.numpy())
    for name, moments in second.moments.items():
        assert first.moments[name].count == moments.count


def filled_again(arrays: Arrays) -> Arrays:
    again = {name: array.copy() for name, array in arrays.items()}
    again["header"][:, 0] = FILLED
    return again
