"""Rollouts for tests: a policy acting in an imaginary world where episodes end in every way.

Shapes: T steps, B environments.
"""

from __future__ import annotations

import numpy as np
import torch

from rookery.core.records import Rollout, rollout_spec
from rookery.core.signature import Signature
from rookery.core.spec import Array, ArraySpec, LeafSpec, zeros
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.policy import PolicyConfig

FLOAT = np.dtype(np.float32)
DISCRETE = LeafSpec("discrete", (), np.dtype(np.int64), (4,))
BOX = LeafSpec("box", (2,), FLOAT)


def small_policy(core: str = "none", action: LeafSpec = DISCRETE, seed: int = 0) -> ActorCritic:
    """A small network that sees three numbers."""
    torch.manual_seed(seed)
    config = PolicyConfig(core=core, core_size=6, hidden=(8,))  # type: ignore[arg-type]
    policy = ActorCritic(config, Signature({"obs": LeafSpec("box", (3,), FLOAT)}, action))
    torch.nn.init.normal_(policy.action_head.linear.weight)
    return policy


def random_rollout(
    policy: ActorCritic,
    rng: np.random.Generator,
    *,
    num_steps: int,
    num_envs: int,
    end_rate: float = 0.2,
    spend_steps_on_resets: bool = False,
) -> Rollout:
    """What an actor would have put, its log-probabilities and values those of ``policy``.

    With ``spend_steps_on_resets`` the step after an end is a reset, and masked.
    """
    rollout = empty_rollout(policy, num_steps, num_envs)
    shape = (num_steps, num_envs)
    rollout.obs["obs"][:] = rng.normal(size=(num_steps + 1, num_envs, 3))
    rollout.reward[:] = rng.normal(size=shape)
    ended = np.zeros(num_envs, np.bool_)
    rollout.reset[0] = rng.random(num_envs) < 0.5
    for t in range(num_steps):
        rollout.mask[t] = ~ended if spend_steps_on_resets else True
        ends = (rng.random(num_envs) < end_rate) & rollout.mask[t]
        how = rng.random(num_envs) < 0.5
        rollout.terminated[t] = ends & how
        rollout.truncated[t] = ends & ~how
        rollout.reset[t + 1] = ended if spend_steps_on_resets else ends
        ended = ends
    rollout.final_value[:] = np.where(rollout.truncated, rng.normal(size=shape), 0.0)
    for leaf in rollout.state.values():
        leaf[:] = rng.normal(size=leaf.shape)
    act(policy, rollout, rng)
    return rollout


def empty_rollout(policy: ActorCritic, num_steps: int, num_envs: int) -> Rollout:
    """Memory for a rollout of ``policy``."""
    signature = policy.signature
    spec = rollout_spec(
        num_steps=num_steps,
        num_envs=num_envs,
        obs={name: leaf.array for name, leaf in signature.obs.items()},
        action=ArraySpec(signature.action.shape, signature.action.dtype),
        state=policy.state_spec,
    )
    return Rollout.from_flat(zeros(spec))


def act(policy: ActorCritic, rollout: Rollout, rng: np.random.Generator) -> None:
    """Fill in what ``policy`` chooses and thinks of the observations there."""
    state = {name: torch.from_numpy(leaf) for name, leaf in rollout.state.items()}
    reset = torch.from_numpy(rollout.reset)
    num_steps = len(rollout.action)
    with torch.inference_mode():
        for t in range(num_steps):
            out, state = policy.step(_row(rollout, t), state, reset[t], rng)
            rollout.action[t] = out.action.numpy()
            rollout.log_prob[t] = out.log_prob.numpy()
            rollout.value[t] = out.value.numpy()
        last = policy.value(_row(rollout, num_steps), state, reset[num_steps])
        rollout.value[num_steps] = last.numpy()


def _row(rollout: Rollout, t: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(leaf[t]) for name, leaf in rollout.obs.items()}


def gradient(policy: ActorCritic, loss: torch.Tensor) -> Array:
    """The gradient of ``loss`` by all parameters, as one vector; 0 where there is none."""
    parameters = list(policy.parameters())
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    flat = [
        torch.zeros_like(p).flatten() if g is None else g.flatten()
        for p, g in zip(parameters, grads, strict=True)
    ]
    return torch.cat(flat).numpy()
