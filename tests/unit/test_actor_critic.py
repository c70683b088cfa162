"""The policy that heads, cores, encoder and torsos make.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.core.spec import ACTION_MASK, LeafSpec
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.cores import CoreName
from rookery.nets.policy import PolicyConfig
from tests.unit.net_inputs import (
    ACTIONS,
    FLOAT,
    INT,
    INT8,
    UINT8,
    B,
    T,
    generator,
    randn,
    random_resets,
)


def build(
    config: PolicyConfig | None = None,
    action: LeafSpec = ACTIONS["discrete"],
    obs: dict[str, LeafSpec] | None = None,
) -> ActorCritic:
    torch.manual_seed(0)
    obs = obs or {"obs": LeafSpec("box", (3,), FLOAT)}
    policy = ActorCritic(config or PolicyConfig(), Signature(obs=obs, action=action))
    # Heads begin almost silent; here they must say something.
    nn.init.normal_(policy.action_head.linear.weight)
    return policy


OBS = {
    "camera": LeafSpec("box", (4, 5), UINT8),
    "inner.speed": LeafSpec("box", (2,), FLOAT),
    "room": LeafSpec("discrete", (), INT, (3,)),
}


def random_obs(num_steps: int, num_envs: int) -> Tensors:
    rng = np.random.default_rng(0)
    shape = (num_steps, num_envs)
    return {
        "camera": torch.from_numpy(rng.integers(0, 256, (*shape, 4, 5), np.uint8)),
        "inner.speed": torch.from_numpy(rng.normal(3, 2, (*shape, 2)).astype(np.float32)),
        "room": torch.from_numpy(rng.integers(0, 3, shape)),
    }


@pytest.mark.parametrize("core_name", ["none", "gru", "lstm"])
@pytest.mark.parametrize("kind", list(ACTIONS))
def test_acting_and_learning_agree(kind: str, core_name: CoreName) -> None:
    """Log-probability and value when acting are those of the unroll, so PPO's ratio starts at 1."""
    leaf = ACTIONS[kind]
    masked = bool(leaf.sizes)
    leaves = dict(OBS)
    obs, reset = random_obs(T, B), random_resets()
    if masked:
        leaves[ACTION_MASK] = LeafSpec("multi_binary", (sum(leaf.sizes),), INT8)
        mask = torch.ones(T, B, sum(leaf.sizes), dtype=torch.int8)
        mask[::2, :, 0] = 0
        obs[ACTION_MASK] = mask
    config = PolicyConfig(core=core_name, core_size=7, normalize_obs=True, hidden=(16,))
    policy = build(config, leaf, leaves)
    policy.update_moments(obs, torch.ones(T, B, dtype=torch.bool))
    start = {name: randn(*leaf.shape) for name, leaf in policy.initial_state(B).items()}
    state, rng = start, np.random.default_rng(0)
    acted = []
    with torch.inference_mode():
        for t in range(T):
            now = {name: values[t] for name, values in obs.items()}
            value = policy.value(now, state, reset[t])
            out, state = policy.step(now, state, reset[t], rng)
            torch.testing.assert_close(value, out.value)
            acted.append(out)
    actions = torch.stack([out.action for out in acted]).clone()
    if core_name == "none":
        dist, value = policy.unroll({n: v.flatten(0, 1) for n, v in obs.items()}, {}, reset)
        actions = actions.flatten(0, 1)
    else:
        dist, value = policy.unroll(obs, start, reset)
    log_prob = torch.stack([out.log_prob for out in acted])
    values = torch.stack([out.value for out in acted])
    found = dist.log_prob(actions).detach().view(T, B)
    torch.testing.assert_close(found, log_prob, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value.detach().view(T, B), values, rtol=1e-5, atol=1e-5)
    assert float(log_prob.std()) > 0.05


def test_without_noise_the_most_likely_action_is_taken() -> None:
    policy = build()
    obs, reset = {"obs": randn(6, 3)}, torch.zeros(6, dtype=torch.bool)
    out, _ = policy.step(obs, {}, reset, None)
    dist, _ = policy.unroll(obs, {}, reset)
    assert torch.equal(out.action, dist.mode())


def test_the_initial_state_is_zero_and_has_the_declared_leaves() -> None:
    assert build().initial_state(3) == {}
    assert not build().recurrent
    policy = build(PolicyConfig(core="lstm", core_size=5))
    assert policy.recurrent
    state = policy.initial_state(3)
    assert {name: tuple(leaf.shape) for name, leaf in state.items()} == {"h": (3, 5), "c": (3, 5)}
    assert not any(leaf.any() for leaf in state.values())


def slopes(policy: ActorCritic, of: str) -> set[str]:
    """Parts of the policy that the action (or the value) depends on."""
    policy.zero_grad()
    shapes = {name: leaf.shape for name, leaf in policy.signature.obs.items()}
    obs = {name: torch.rand(2, *shape, generator=generator()) for name, shape in shapes.items()}
    dist, value = policy.unroll(obs, {}, torch.zeros(2, dtype=torch.bool))
    output = value if of == "value" else dist.log_prob(torch.tensor([0, 1]))
    output.sum().backward()  # type: ignore[no-untyped-call]
    return {
        name.partition(".")[0]
        for name, parameter in policy.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    }


@pytest.mark.parametrize("image", [False, True])
def test_torsos_are_shared_for_images_and_separate_otherwise(image: bool) -> None:
    obs = {"obs": LeafSpec("box", (36, 36, 1) if image else (3,), FLOAT)}
    policy = build(obs=obs)
    own = {"torso"} if image else {"value_torso"}
    assert slopes(policy, "action") == {"torso", "action_head"}
    assert slopes(policy, "value") == own | {"value_head"}


def test_torsos_are_shared_or_separate_when_asked() -> None:
    shared = build(PolicyConfig(shared_torso=True))
    assert shared.value_torso is None
    assert slopes(shared, "value") == {"torso", "value_head"}
    image = {"obs": LeafSpec("box", (36, 36, 1), FLOAT)}
    separate = build(PolicyConfig(shared_torso=False), obs=image)
    assert slopes(separate, "value") == {"value_torso", "value_head"}
    assert build(PolicyConfig(core="gru")).value_torso is None


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"hidden": (64, 0)}, "policy.hidden: sizes must be positive, got [64, 0]"),
        ({"core_size": 0}, "policy.core_size"),
        ({"core": "gru", "shared_torso": False}, "set it to true or core to none"),
    ],
)
def test_policies_that_cannot_be_are_refused(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        PolicyConfig(**bad)
    assert said in str(caught.value)


@pytest.mark.parametrize("obs_leaf", [*OBS.values(), LeafSpec("box", (), FLOAT)])
@pytest.mark.parametrize("core_name", ["none", "gru"])
def test_a_policy_takes_any_leaf_alone(obs_leaf: LeafSpec, core_name: CoreName) -> None:
    policy = build(PolicyConfig(core=core_name, normalize_obs=True), obs={"obs": obs_leaf})
    obs = {"obs": torch.zeros((2, *obs_leaf.shape), dtype=_torch_dtype(obs_leaf))}
    out, _ = policy.step(
        obs, policy.initial_state(2), torch.ones(2, dtype=torch.bool), np.random.default_rng(0)
    )
    assert out.action.shape == out.value.shape == (2,)


def _torch_dtype(leaf: LeafSpec) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, leaf.dtype)).dtype


def test_bf16_computes_torsos_coarsely_and_keeps_weights_and_outputs_float32() -> None:
    signature = Signature(
        obs={"obs": LeafSpec("box", (4, 36, 36), UINT8)}, action=ACTIONS["discrete"]
    )
    exact, coarse = (
        _seeded_policy(PolicyConfig(precision=precision), signature)
        for precision in ("fp32", "bf16")
    )
    images = torch.randint(0, 256, (6, 4, 36, 36), dtype=torch.uint8, generator=generator())
    (_, value), (_, rounded) = (
        policy.unroll({"obs": images}, {}, torch.zeros(6)) for policy in (exact, coarse)
    )
    assert rounded.dtype == torch.float32
    assert not torch.equal(value, rounded)
    torch.testing.assert_close(value, rounded, rtol=0.1, atol=0.05)
    rounded.sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in coarse.parameters())


def _seeded_policy(config: PolicyConfig, signature: Signature) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(config, signature)


def test_moments_written_from_outside_count_after_refreshing() -> None:
    policy = build(PolicyConfig(normalize_obs=True))
    state = policy.initial_state(1)
    obs, reset = {"obs": torch.ones(1, 3)}, torch.zeros(1, dtype=torch.bool)
    before = policy.value(obs, state, reset)
    moved = build(PolicyConfig(normalize_obs=True))
    moved.update_moments({"obs": randn(9, 2, 3) + 5.0}, torch.ones(9, 2, dtype=torch.bool))
    policy.load_state_dict(moved.state_dict())
    policy.refreshed()
    after = policy.value(obs, state, reset)
    torch.testing.assert_close(after, moved.value(obs, state, reset))
    assert not torch.allclose(before, after)
