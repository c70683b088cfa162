"""A2C and PPO: losses, gradients, minibatches, targets, and schedules.

Shapes: T steps, B environments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rookery.algos.a2c import A2C, A2CConfig
from rookery.algos.algorithm import (
    Algorithm,
    algorithm_names,
    build_algorithm,
    config_class,
)
from rookery.algos.on_policy import (
    Batch,
    OnPolicyConfig,
    RewardNormalizer,
    Targets,
    explained_variance,
    minibatches,
)
from rookery.algos.ppo import PPO, PPOConfig
from rookery.core.errors import UserError
from rookery.core.records import Rollout
from rookery.core.schedule import LinearSchedule, check_schedule, value_at
from rookery.core.spec import Array, LeafSpec
from rookery.nets.actor_critic import ActorCritic
from tests.reference import policy_gradient_reference, value_reference
from tests.reference.returns_reference import generalized_advantages
from tests.reference.reward_normalizer_reference import RewardNormalizer as SlowRewardNormalizer
from tests.rollouts import BOX, DISCRETE, gradient, random_rollout, small_policy

CPU = torch.device("cpu")
T, B = 8, 5
CORES = pytest.mark.parametrize("core", ["none", "gru", "lstm"])


def rollout_of(policy: ActorCritic, seed: int = 0, *, spend: bool = False) -> Rollout:
    return random_rollout(
        policy,
        np.random.default_rng(seed),
        num_steps=T,
        num_envs=B,
        spend_steps_on_resets=spend,
    )


def off_policy(rollout: Rollout) -> Rollout:
    """As if the weights had moved since: ratios on both sides of the clip."""
    rng = np.random.default_rng(99)
    rollout.log_prob += rng.normal(0.0, 0.3, rollout.log_prob.shape).astype(np.float32)
    rollout.value += rng.normal(0.0, 0.5, rollout.value.shape).astype(np.float32)
    return rollout


def build(config: OnPolicyConfig, policy: ActorCritic) -> Algorithm:
    return build_algorithm(
        type(config).__name__.removesuffix("Config").lower(),
        config,
        recurrent=policy.recurrent,
        device=CPU,
    )


def whole(policy: ActorCritic, batch: Batch) -> Batch:
    return batch if policy.recurrent else batch.flatten()


def loss_of(
    config: OnPolicyConfig, policy: ActorCritic, rollout: Rollout, steps: int = 0
) -> tuple[Tensor, dict[str, Tensor]]:
    algorithm = build(config, policy)
    return algorithm.loss(policy, whole(policy, algorithm.prepare(rollout)), steps)


# --- losses ----------------------------------------------------------------------------------


@CORES
@pytest.mark.parametrize("action", [DISCRETE, BOX], ids=["discrete", "box"])
def test_ppo_at_ratio_one_has_the_gradient_of_a2c(core: str, action: LeafSpec) -> None:
    """Before the first step of an update both are the policy gradient (float32: 1e-5)."""
    policy = small_policy(core, action)
    rollout = rollout_of(policy)
    shared: dict[str, Any] = {"gae_lambda": 0.9, "entropy_coef": 0.02, "normalize_advantage": True}
    ours, metrics = loss_of(PPOConfig(**shared), policy, rollout)
    theirs, _ = loss_of(A2CConfig(**shared), policy, rollout)
    expected = gradient(policy, theirs)
    np.testing.assert_allclose(gradient(policy, ours), expected, atol=1e-5)
    assert np.abs(expected).max() > 1e-2
    assert float(metrics["approx_kl"]) < 1e-6
    assert float(metrics["clip_fraction"]) == 0.0


@pytest.mark.parametrize("value_loss", ["squared", "smooth_l1"])
@pytest.mark.parametrize("clip_value", [None, 0.2])
def test_the_loss_of_ppo_equals_a_plain_reference(
    value_loss: Any, clip_value: float | None
) -> None:
    config = PPOConfig(
        clip=0.15,
        clip_value=clip_value,
        value_loss=value_loss,
        value_coef=0.7,
        entropy_coef=0.03,
        gamma=0.9,
        gae_lambda=0.8,
    )
    policy = small_policy()
    rollout = off_policy(rollout_of(policy, spend=True))
    total, metrics = loss_of(config, policy, rollout)

    obs = torch.from_numpy(rollout.obs["obs"][:-1]).flatten(0, 1)
    with torch.no_grad():
        dist, value = policy.unroll({"obs": obs}, {}, torch.zeros(T * B, dtype=torch.bool))
        entropy = dist.entropy().numpy()
        log_prob = dist.log_prob(torch.from_numpy(rollout.action).flatten()).numpy()
    mask, old_value = rollout.mask.reshape(-1), rollout.value[:-1].reshape(-1)
    advantage = generalized_advantages(
        rollout.reward,
        rollout.value,
        rollout.terminated,
        rollout.truncated,
        rollout.final_value,
        0.9,
        0.8,
    )
    target = (advantage + rollout.value[:-1]).reshape(-1)
    standard = policy_gradient_reference.standardize(advantage, rollout.mask).reshape(-1)
    surrogate, ratio = policy_gradient_reference.clipped_surrogate_loss(
        log_prob, rollout.log_prob.reshape(-1), standard, 0.15
    )
    errors = value_reference.value_loss(value.numpy(), target, value_loss)
    if clip_value is not None:
        kept = value_reference.clipped_value(value.numpy(), old_value, clip_value)
        errors = np.maximum(errors, value_reference.value_loss(kept, target, value_loss))
    actor, critic = surrogate[mask].mean(), errors[mask].mean()
    expected = {
        "policy_loss": actor,
        "value_loss": critic,
        "entropy": entropy[mask].mean(),
        "clip_fraction": (np.abs(ratio - 1) > 0.15)[mask].mean(),
        "approx_kl": (ratio - 1 - np.log(ratio))[mask].mean(),
    }
    assert 0 < expected["clip_fraction"] < 1
    for name, number in expected.items():
        assert math.isclose(float(metrics[name]), number, rel_tol=1e-4, abs_tol=1e-5), name
    expected_total = actor + 0.7 * critic - 0.03 * entropy[mask].mean()
    assert math.isclose(float(total.detach()), expected_total, rel_tol=1e-4, abs_tol=1e-5)


def test_the_loss_of_a2c_equals_a_plain_reference() -> None:
    policy = small_policy()
    rollout = rollout_of(policy, spend=True)
    config = A2CConfig(gamma=0.9, gae_lambda=0.8, value_coef=0.7, entropy_coef=0.03)
    total, metrics = loss_of(config, policy, rollout)
    advantage = generalized_advantages(
        rollout.reward,
        rollout.value,
        rollout.terminated,
        rollout.truncated,
        rollout.final_value,
        0.9,
        0.8,
    )
    mask = rollout.mask
    actor = -(rollout.log_prob * advantage)[mask].mean()
    # The values of the policy that acted are those of the policy that learns.
    critic = 0.5 * (advantage**2)[mask].mean()
    assert math.isclose(float(metrics["policy_loss"]), actor, rel_tol=1e-4)
    assert math.isclose(float(metrics["value_loss"]), critic, rel_tol=1e-4)
    expected = actor + 0.7 * critic - 0.03 * float(metrics["entropy"])
    assert math.isclose(float(total.detach()), expected, rel_tol=1e-4)


def test_coefficients_follow_their_schedules() -> None:
    policy = small_policy()
    rollout = off_policy(rollout_of(policy))
    falling = LinearSchedule(start=0.4, end=0.0, until_steps=100)
    moving = PPOConfig(clip=falling, entropy_coef=falling)
    for steps, number in ((0, 0.4), (50, 0.2), (100, 0.0), (1000, 0.0)):
        fixed = PPOConfig(clip=number, entropy_coef=number)
        found, expected = (loss_of(c, policy, rollout, steps)[0] for c in (moving, fixed))
        torch.testing.assert_close(found, expected)
    early, late = (loss_of(moving, policy, rollout, steps)[0] for steps in (0, 100))
    assert not torch.allclose(early, late)


ALGORITHMS: dict[str, OnPolicyConfig] = {
    "a2c": A2CConfig(normalize_advantage=True, normalize_reward=True),
    "ppo": PPOConfig(normalize_reward=True, clip_value=0.3),
}


def spoil_masked_rows(rollout: Rollout) -> None:
    """Garbage wherever the backend spent the step on a reset."""
    off = ~rollout.mask
    rollout.obs["obs"][:-1][off] = 7.0
    rollout.action[off] = (rollout.action[off] + 1) % 4
    for array, garbage in (
        (rollout.log_prob, -3.0),
        (rollout.reward, 50.0),
        (rollout.value[:-1], 20.0),
        (rollout.final_value, -30.0),
    ):
        array[off] = garbage


@CORES
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_masked_rows_influence_neither_loss_nor_gradient(name: str, core: str) -> None:
    """Nor, when recurrent, what follows them: an episode begins after each."""
    policy = small_policy(core)
    rollout = off_policy(rollout_of(policy, spend=True))
    assert 3 < np.count_nonzero(~rollout.mask) < T * B / 2
    before, metrics = loss_of(ALGORITHMS[name], policy, rollout)
    spoil_masked_rows(rollout)
    after, spoilt = loss_of(ALGORITHMS[name], policy, rollout)
    torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient(policy, before), gradient(policy, after), atol=1e-6)
    for metric, number in metrics.items():
        torch.testing.assert_close(number, spoilt[metric], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_a_batch_without_its_masked_rows_has_the_same_gradient(name: str) -> None:
    policy = small_policy()
    algorithm = build(ALGORITHMS[name], policy)
    batch = algorithm.prepare(off_policy(rollout_of(policy, spend=True))).flatten()
    fewer = batch.samples(torch.nonzero(batch.mask).flatten())
    assert len(fewer.mask) < len(batch.mask)
    found, expected = (
        gradient(policy, algorithm.loss(policy, part, 0)[0]) for part in (fewer, batch)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_batch_of_masked_rows_alone_gives_no_gradient() -> None:
    policy = small_policy()
    rollout = rollout_of(policy)
    rollout.mask[:] = False
    loss, _ = loss_of(PPOConfig(), policy, rollout)
    assert not gradient(policy, loss).any()


# --- minibatches -----------------------------------------------------------------------------


def tagged_batch(core: str) -> tuple[ActorCritic, Batch]:
    """A batch whose values tell which sample they are."""
    policy = small_policy(core)
    batch = Targets(PPOConfig(), CPU)(rollout_of(policy))
    batch.value = torch.arange(T * B, dtype=torch.float32).view(T, B)
    for leaf in batch.state.values():
        leaf[:] = torch.arange(B, dtype=torch.float32)[:, None]
    return policy, batch


@pytest.mark.parametrize("num", [1, 2, 3, 4, 7, T * B])
def test_feed_forward_minibatches_share_out_the_samples(num: int) -> None:
    _, batch = tagged_batch("none")
    parts = list(
        minibatches(batch, recurrent=False, num_minibatches=num, rng=np.random.default_rng(0))
    )
    assert len(parts) == num
    tags = torch.cat([part.value for part in parts])
    assert sorted(tags.tolist()) == list(range(T * B))
    sizes = [len(part.value) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        index = part.value.long()
        torch.testing.assert_close(part.obs["obs"], batch.obs["obs"].flatten(0, 1)[index])
        for field in ("action", "log_prob", "advantage", "target", "mask", "reset"):
            assert torch.equal(getattr(part, field), getattr(batch, field).flatten()[index])


@pytest.mark.parametrize("num", [1, 2, 3, 4, B])
def test_recurrent_minibatches_share_out_whole_environments(num: int) -> None:
    _, batch = tagged_batch("gru")
    parts = list(
        minibatches(batch, recurrent=True, num_minibatches=num, rng=np.random.default_rng(0))
    )
    assert len(parts) == num
    columns = torch.cat([part.value[0] for part in parts])
    assert sorted(columns.tolist()) == list(range(B))
    sizes = [part.value.shape[1] for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        index = part.value[0].long()
        assert part.state["h"][:, 0].tolist() == index.tolist()
        torch.testing.assert_close(part.obs["obs"], batch.obs["obs"][:, index])
        for field in ("action", "log_prob", "advantage", "target", "mask", "reset", "value"):
            assert torch.equal(getattr(part, field), getattr(batch, field)[:, index])


@pytest.mark.parametrize("core", ["none", "gru"])
def test_the_gradient_of_a_batch_is_the_mean_over_its_minibatches(core: str) -> None:
    policy = small_policy(core)
    algorithm = A2C(A2CConfig(), recurrent=policy.recurrent, device=CPU)
    batch = algorithm.prepare(rollout_of(policy))
    expected = gradient(policy, algorithm.loss(policy, whole(policy, batch), 0)[0])
    parts = minibatches(
        batch, recurrent=policy.recurrent, num_minibatches=B, rng=np.random.default_rng(0)
    )
    found = [gradient(policy, algorithm.loss(policy, part, 0)[0]) for part in parts]
    np.testing.assert_allclose(np.mean(found, 0), expected, atol=1e-6)


def test_ppo_passes_over_the_batch_in_a_new_order_each_epoch() -> None:
    _, batch = tagged_batch("none")
    ppo = PPO(PPOConfig(num_epochs=3, num_minibatches=4), recurrent=False, device=CPU)
    parts = list(ppo.minibatches(batch, np.random.default_rng(0)))
    assert len(parts) == 12
    epochs = [torch.cat([p.value for p in parts[i : i + 4]]).tolist() for i in (0, 4, 8)]
    assert all(sorted(epoch) == list(range(T * B)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = list(ppo.minibatches(batch, np.random.default_rng(0)))
    assert all(torch.equal(a.value, b.value) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_a2c_takes_the_batch_once(core: str) -> None:
    policy, batch = tagged_batch(core)
    a2c = A2C(A2CConfig(), recurrent=policy.recurrent, device=CPU)
    (only,) = a2c.minibatches(batch, np.random.default_rng(0))
    assert torch.equal(only.value.flatten(), torch.arange(T * B, dtype=torch.float32))
    assert only.value.ndim == (2 if policy.recurrent else 1)


# --- targets ---------------------------------------------------------------------------------


def test_targets_are_advantages_plus_the_values_of_the_policy_that_acted() -> None:
    policy = small_policy()
    rollout = off_policy(rollout_of(policy))
    batch = Targets(A2CConfig(gamma=0.9, gae_lambda=0.8, reward_scale=0.5), CPU)(rollout)
    expected = generalized_advantages(
        rollout.reward * 0.5,
        rollout.value,
        rollout.terminated,
        rollout.truncated,
        rollout.final_value,
        0.9,
        0.8,
    )
    np.testing.assert_allclose(batch.advantage.numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(batch.target.numpy(), expected + rollout.value[:-1], atol=1e-5)


def test_advantages_are_normalised_over_what_counts_and_targets_are_not() -> None:
    policy = small_policy()
    rollout = rollout_of(policy, spend=True)
    raw = Targets(PPOConfig(normalize_advantage=False), CPU)(rollout)
    batch = Targets(PPOConfig(normalize_advantage=True), CPU)(rollout)
    counted = batch.advantage[batch.mask > 0]
    assert abs(float(counted.mean())) < 1e-6
    assert abs(float(counted.std(unbiased=False)) - 1.0) < 1e-5
    assert abs(float(raw.advantage[raw.mask > 0].mean())) > 1e-2
    assert torch.equal(batch.target, raw.target)


def test_the_batch_shares_the_actors_memory() -> None:
    rollout = rollout_of(small_policy())
    # As blocks are: beginning where torch's own memory would, which NumPy's does by chance.
    rollout.obs["obs"] = torch.from_numpy(rollout.obs["obs"]).clone().numpy()
    rollout.action = torch.from_numpy(rollout.action).clone().numpy()
    batch = Targets(PPOConfig(), CPU)(rollout)
    assert np.shares_memory(batch.obs["obs"].numpy(), rollout.obs["obs"])
    assert np.shares_memory(batch.action.numpy(), rollout.action)


def test_learning_does_not_change_what_the_actors_wrote() -> None:
    policy = small_policy()
    rollout = rollout_of(policy, spend=True)
    before = {name: array.copy() for name, array in rollout.flat().items()}
    config = PPOConfig(normalize_reward=True, reward_scale=0.1, normalize_advantage=True)
    loss_of(config, policy, rollout)[0].backward()  # type: ignore[no-untyped-call]
    for name, array in rollout.flat().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def rewards(rng: np.random.Generator, columns: int) -> tuple[Array, Array, Array]:
    """Rewards, starts of episodes and the mask, as an environment of large rewards gives them."""
    shape = (T, columns)
    return (
        rng.normal(20.0, 30.0, shape).astype(np.float32),
        rng.random(shape) < 0.2,
        rng.random(shape) < 0.9,
    )


def test_the_reward_normaliser_equals_its_reference_round_after_round() -> None:
    rng = np.random.default_rng(0)
    fast, slow = RewardNormalizer(0.9, CPU), SlowRewardNormalizer(0.9, B)
    for _ in range(6):
        reward, reset, mask = rewards(rng, B)
        found = fast(*(torch.from_numpy(array) for array in (reward, reset, mask)))
        np.testing.assert_allclose(found.numpy(), slow(reward, reset, mask), rtol=1e-5)


def test_normalised_rewards_have_limits() -> None:
    fast = RewardNormalizer(0.0, CPU)
    reward = torch.zeros(200, 2)
    reward[0] = torch.tensor([1000.0, -1000.0])
    mask = torch.ones(200, 2, dtype=torch.bool)
    found = fast(reward, torch.ones(200, 2, dtype=torch.bool), mask)
    assert found[0].tolist() == [10.0, -10.0]


def test_several_rollouts_an_update_are_normalised_in_the_order_they_were_made() -> None:
    """The columns of a block are [rollout, actor, env]: halves follow one another in time."""
    policy = small_policy()
    config = PPOConfig(normalize_reward=True, rollouts_per_update=2, gamma=0.9)
    targets = Targets(config, CPU)
    slow = SlowRewardNormalizer(0.9, B)
    for seed in range(3):
        rollout = random_rollout(policy, np.random.default_rng(seed), num_steps=T, num_envs=2 * B)
        rollout.reward[:] = 30 * rollout.reward + 5
        halves = [rollout.columns(0, B), rollout.columns(B, 2 * B)]
        reward = np.concatenate([slow(h.reward, h.reset[:-1], h.mask) for h in halves], 1)
        expected = generalized_advantages(
            reward,
            rollout.value,
            rollout.terminated,
            rollout.truncated,
            rollout.final_value,
            0.9,
            config.gae_lambda,
        )
        target = targets(rollout).target.numpy()
        np.testing.assert_allclose(target, expected + rollout.value[:-1], rtol=1e-4, atol=1e-4)


def test_the_reward_normaliser_goes_on_from_its_saved_state() -> None:
    policy = small_policy()
    config = PPOConfig(normalize_reward=True)
    ppo = PPO(config, recurrent=False, device=CPU)
    for seed in range(2):
        ppo.prepare(rollout_of(policy, seed))
    saved = {name: tensor.clone() for name, tensor in ppo.state_tensors().items()}
    expected = ppo.prepare(rollout_of(policy, 2))
    other = PPO(config, recurrent=False, device=CPU)
    other.load_state_tensors(saved)
    found = other.prepare(rollout_of(policy, 2))
    assert torch.equal(found.target, expected.target)
    fresh = PPO(config, recurrent=False, device=CPU).prepare(rollout_of(policy, 2))
    assert not torch.equal(fresh.target, expected.target)


def test_without_reward_normalisation_there_is_no_state() -> None:
    ppo = PPO(PPOConfig(), recurrent=False, device=CPU)
    assert ppo.state_tensors() == {}
    ppo.load_state_tensors({})


def test_explained_variance_equals_its_formula() -> None:
    policy = small_policy()
    rollout = off_policy(rollout_of(policy, spend=True))
    batch = Targets(PPOConfig(), CPU)(rollout)
    target, value = (t.numpy()[rollout.mask] for t in (batch.target, batch.value))
    expected = 1.0 - np.var(target - value) / np.var(target)
    found = explained_variance(batch.value, batch.target, batch.mask)
    assert math.isclose(float(found), expected, rel_tol=1e-4)
    perfect = explained_variance(batch.target, batch.target, batch.mask)
    assert math.isclose(float(perfect), 1.0, abs_tol=1e-6)


# --- settings --------------------------------------------------------------------------------


def test_schedules_go_straight_from_start_to_end() -> None:
    schedule = LinearSchedule(start=1.0, end=0.0, from_steps=100, until_steps=300)
    found = [value_at(schedule, steps) for steps in (0, 100, 150, 200, 300, 10**9)]
    assert found == [1.0, 1.0, 0.75, 0.5, 0.0, 0.0]
    rising = LinearSchedule(start=0.0, end=2.0, until_steps=4)
    assert [value_at(rising, steps) for steps in range(6)] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.0]
    assert value_at(0.25, 10**9) == 0.25


def test_a_schedule_goes_straight_from_corner_to_corner() -> None:
    schedule = LinearSchedule(start=8.0, end=0.0, until_steps=40, via=((10, 2.0), (20, 2.0)))
    found = [value_at(schedule, steps) for steps in (0, 5, 10, 15, 20, 30, 40, 50)]
    assert found == [8.0, 5.0, 2.0, 2.0, 2.0, 1.0, 0.0, 0.0]
    with pytest.raises(UserError, match="must rise between"):
        LinearSchedule(start=1.0, end=0.0, until_steps=40, via=((20, 1.0), (10, 1.0)))


@pytest.mark.parametrize("until", [0, 50, 100])
def test_a_schedule_must_take_time(until: int) -> None:
    with pytest.raises(UserError, match=r"until_steps .* must be larger than from_steps"):
        LinearSchedule(start=1.0, end=0.0, from_steps=100, until_steps=until)


def test_schedules_below_their_least_value_are_refused() -> None:
    check_schedule("x", 0.0)
    check_schedule("x", LinearSchedule(start=1.0, end=0.0, until_steps=1))
    for bad in (-0.1, math.nan, LinearSchedule(start=1.0, end=-0.5, until_steps=1)):
        with pytest.raises(UserError, match=r"algo\.clip: .* is below 0"):
            check_schedule("algo.clip", bad)
    with pytest.raises(UserError, match="must be finite"):
        check_schedule("x", math.inf)
    with pytest.raises(UserError, match="is below 2"):
        check_schedule("x", 1.0, low=2.0)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"rollout_steps": 0}, "algo.rollout_steps: must be at least 1, got 0"),
        ({"rollouts_per_update": 0}, "algo.rollouts_per_update"),
        ({"gamma": 1.1}, "algo.gamma: must be within 0 and 1, got 1.1"),
        ({"gae_lambda": -0.1}, "algo.gae_lambda"),
        ({"gamma": math.nan}, "algo.gamma"),
        ({"entropy_coef": -1.0}, "algo.entropy_coef: -1.0 is below 0"),
        ({"value_coef": -1.0}, "algo.value_coef"),
        ({"reward_scale": 0.0}, "algo.reward_scale: must be positive"),
    ],
)
@pytest.mark.parametrize("config", [A2CConfig, PPOConfig])
def test_settings_that_cannot_be_are_refused(
    config: Callable[..., Any], bad: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        config(**bad)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"num_epochs": 0}, "algo.num_epochs: must be at least 1"),
        ({"num_minibatches": 0}, "algo.num_minibatches"),
        ({"clip": -0.2}, "algo.clip: -0.2 is below 0"),
        ({"clip_value": 0.0}, "algo.clip_value: must be positive or null"),
    ],
)
def test_settings_that_ppo_cannot_have_are_refused(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        PPOConfig(**bad)
    assert said in str(caught.value)


def test_algorithms_by_name() -> None:
    assert {"a2c", "ppo"} <= set(algorithm_names())
    assert config_class("a2c") is A2CConfig
    assert config_class("ppo") is PPOConfig
    assert isinstance(build(A2CConfig(), small_policy()), A2C)
    assert isinstance(build(PPOConfig(), small_policy()), PPO)
    with pytest.raises(UserError, match="unknown 'pp0'; did you mean 'ppo'"):
        config_class("pp0")
