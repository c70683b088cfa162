"""A trained agent: observations in, actions out.

::

    agent = rookery.load("runs/cartpole-...")
    action, state = agent.act(obs)                    # first step of an episode
    action, state = agent.act(obs, state)             # and on; state is {} without memory
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from rookery.cli.settings import config_from_tree
from rookery.core.action import to_env_units
from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.core.spec import Array, Arrays, LeafSpec
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic
from rookery.roles.learner import load_weights
from rookery.runs.checkpoint import Checkpoint, find_checkpoint, load_checkpoint
from rookery.runs.config import RunConfig
from rookery.runs.directory import RunDirectory


class Agent:
    """A policy with its weights, ready to act."""

    def __init__(self, policy: ActorCritic, seed: int = 0) -> None:
        self.policy = policy
        self.signature = policy.signature
        self.rng = np.random.default_rng(seed)

    def act(
        self, obs: Any, state: Tensors | None = None, deterministic: bool = False
    ) -> tuple[Any, Tensors]:
        """The action for one observation, or actions for a batch of them, and the new state.

        ``obs`` is what the environment returned: an array, a number, or a mapping or tuple of them.
        ``state`` is what the call before returned; None at the start of an episode.
        """
        leaves, many = self._leaves(obs)
        num = len(next(iter(leaves.values())))
        fresh = state is None
        state = self.policy.initial_state(num) if state is None else state
        reset = torch.full((num,), fresh)
        rng = None if deterministic else self.rng
        with torch.inference_mode():
            tensors = {name: torch.from_numpy(leaf) for name, leaf in leaves.items()}
            out, state = self.policy.step(tensors, state, reset, rng)
        action = self._to_env(out.action.cpu().numpy())
        return (action if many else action[0]), state

    def _to_env(self, action: Array) -> Array:
        leaf = self.signature.action
        fitted = to_env_units(leaf, action)
        return fitted.reshape(len(action), *leaf.shape)

    def _leaves(self, obs: Any) -> tuple[Arrays, bool]:
        found = _by_name(obs)
        specs = self.signature.obs
        if set(found) != set(specs):
            raise UserError(f"the agent observes {sorted(specs)}, but was given {sorted(found)}")
        arrays = {name: np.asarray(found[name], leaf.dtype) for name, leaf in specs.items()}
        many = {_is_batch(name, arrays[name], leaf) for name, leaf in specs.items()}
        if len(many) != 1:
            raise UserError("some parts of the observation are batches and some are not")
        batch = many.pop()
        return {name: array if batch else array[None] for name, array in arrays.items()}, batch


def _by_name(obs: Any, prefix: str = "") -> dict[str, Any]:
    items: Any
    if isinstance(obs, Mapping):
        items = obs.items()
    elif isinstance(obs, tuple):
        items = enumerate(obs)
    else:
        return {prefix or "obs": obs}
    out: dict[str, Any] = {}
    for key, value in items:
        out |= _by_name(value, f"{prefix}.{key}" if prefix else str(key))
    return out


def _is_batch(name: str, array: Array, leaf: LeafSpec) -> bool:
    if array.shape == leaf.shape:
        return False
    if array.shape[1:] == leaf.shape and array.ndim == len(leaf.shape) + 1:
        return True
    raise UserError(
        f"observation '{name}' has shape {list(array.shape)}; the agent takes {list(leaf.shape)} "
        "or a batch of these"
    )


def load(run: str | Path, checkpoint: str | None = None, *, seed: int = 0) -> Agent:
    """The agent of a run directory, or of a checkpoint inside one (default: best, else latest)."""
    return Agent(load_policy(Path(run), checkpoint)[0], seed)


def load_policy(path: Path, which: str | None = None) -> tuple[ActorCritic, RunConfig, Checkpoint]:
    """Policy, configuration and checkpoint (its ``weights`` part) of a run."""
    found = find_checkpoint(path, which)
    config = load_config(run_of(found))
    checkpoint = load_checkpoint(found, parts=["weights"])
    weights = checkpoint.parts["weights"]
    policy = ActorCritic(config.policy, Signature.from_json(weights.data["signature"]))
    load_weights(policy, weights)
    policy.eval()
    return policy, config, checkpoint


def run_of(checkpoint: Path) -> RunDirectory:
    """The run that a checkpoint lies in."""
    return RunDirectory.open(checkpoint.parent.parent)


def load_config(run: RunDirectory) -> RunConfig:
    """The resolved configuration of a run."""
    return config_from_tree(yaml.safe_load(run.config_path.read_text("utf-8")))
