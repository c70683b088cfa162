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

from rookery.core.action import from_env_form, to_env_form
from rookery.core.errors import UserError
from rookery.core.spec import ACTION_MASK, Array, Arrays, LeafSpec
from rookery.core.tensors import Tensors, as_tensor
from rookery.nets.policy import Policy
from rookery.runs.trained import find_trained

_PLAIN = "obs"
"""Name of the one leaf of an observation that is neither a mapping nor a tuple."""


class Agent:
    """A policy with its weights, ready to act."""

    def __init__(self, policy: Policy, seed: int = 0) -> None:
        self.policy = policy
        self.signature = policy.signature
        self.rng = np.random.default_rng(seed)

    def act(
        self,
        obs: Any,
        state: Mapping[str, Any] | None = None,
        deterministic: bool = False,
        *,
        action_mask: Any = None,
        reset: Any = None,
    ) -> tuple[Any, Tensors]:
        """The action for one observation, or actions for a batch of them, and the new state.

        ``obs`` is what the environment returned: an array, a number, or a mapping or tuple of them;
        a batch has one more axis in front. ``state`` is what the call before returned; None at the
        start of an episode. ``reset`` is true for those of a batch that begin an episode while the
        others go on. ``action_mask`` is 0 at forbidden choices (default: none is), for agents
        trained with one. The action is what ``env.step`` takes.
        """
        leaves, many = self._leaves(obs)
        num = len(next(iter(leaves.values())))
        if ACTION_MASK in self.signature.obs:
            leaves[ACTION_MASK] = self._mask(action_mask, num)
        begins = self._begins(state is None if reset is None else reset, num)
        state = self.policy.initial_state(num) if state is None else self._checked(state, num)
        rng = None if deterministic else self.rng
        with torch.inference_mode():
            tensors = {name: _tensor(leaf) for name, leaf in leaves.items()}
            out, state = self.policy.step(tensors, state, begins, rng)
        action = to_env_form(self.signature.action, out.action.cpu().numpy())
        if many:
            return action, state
        one = action[0]
        return (one.item() if self.signature.action.kind == "discrete" else np.asarray(one)), state

    def _leaves(self, obs: Any) -> tuple[Arrays, bool]:
        """Leaves ``[B, ...]`` as they are carried, and whether ``obs`` was a batch."""
        specs = {name: leaf for name, leaf in self.signature.obs.items() if name != ACTION_MASK}
        plain = set(specs) == {_PLAIN} and not isinstance(obs, Mapping)
        found = {_PLAIN: obs} if plain else _by_name(obs)
        if set(found) != set(specs):
            raise UserError(f"the agent observes {sorted(specs)}, but was given {sorted(found)}")
        values = {name: np.asarray(found[name]) for name in specs}
        many = {_is_batch(name, values[name], leaf) for name, leaf in specs.items()}
        if len(many) != 1 or len({len(value) for value in values.values() if many == {True}}) > 1:
            raise UserError(
                "the parts of the observation are not of one batch; give each the same first axis"
            )
        batch = many.pop()
        if not batch:
            values = {name: value[None] for name, value in values.items()}
        return {name: from_env_form(leaf, values[name]) for name, leaf in specs.items()}, batch

    def _mask(self, mask: Any, num: int) -> Array:
        leaf = self.signature.obs[ACTION_MASK]
        wanted = np.ones(leaf.shape) if mask is None else np.asarray(mask)
        try:
            return np.broadcast_to(wanted, (num, *leaf.shape)).astype(leaf.dtype)
        except ValueError:
            raise UserError(
                f"action_mask has shape {list(wanted.shape)}; give {list(leaf.shape)} "
                f"or {[num, *leaf.shape]}"
            ) from None

    def _begins(self, reset: Any, num: int) -> torch.Tensor:
        wanted = np.asarray(reset, np.bool_)
        if wanted.shape not in ((), (num,)):
            raise UserError(
                f"reset has shape {list(wanted.shape)}; give one truth for each of {num}"
            )
        return torch.from_numpy(np.broadcast_to(wanted, (num,)).copy())

    def _checked(self, state: Mapping[str, Any], num: int) -> Tensors:
        """``state``, of tensors or of arrays, as the policy takes it."""
        for name in self.policy.state_spec:
            if name not in state or len(state[name]) != num:
                have = len(state[name]) if name in state else "none"
                raise UserError(
                    f"the state is of {have} observations, but {num} were given; pass the state "
                    "that act returned for these, or None to begin episodes"
                )
        return {name: torch.as_tensor(state[name]) for name in self.policy.state_spec}


def _tensor(array: Array) -> torch.Tensor:
    """Torch takes neither read-only memory nor backward strides: those are copied."""
    return as_tensor(np.require(array, requirements=["C", "W"]), torch.device("cpu"))


def _by_name(obs: Any, prefix: str = "") -> dict[str, Any]:
    items: Any
    if isinstance(obs, Mapping):
        items = obs.items()
    elif isinstance(obs, tuple):
        items = enumerate(obs)
    else:
        return {prefix or _PLAIN: obs}
    out: dict[str, Any] = {}
    for key, value in items:
        out |= _by_name(value, f"{prefix}.{key}" if prefix else str(key))
    return out


def _is_batch(name: str, array: Array, leaf: LeafSpec) -> bool:
    shape = leaf.shape if leaf.env_form is None else leaf.env_form.shape
    if array.shape == shape:
        return False
    if array.shape[1:] == shape and array.ndim == len(shape) + 1 and len(array):
        return True
    raise UserError(
        f"observation '{name}' has shape {list(array.shape)}; the agent takes {list(shape)} "
        "or a batch of these"
    )


def load(run: str | Path, checkpoint: str | None = None, *, seed: int = 0) -> Agent:
    """The agent of a run (best, else latest), a checkpoint inside one, zoo:NAME or a bundle."""
    return Agent(find_trained(run, checkpoint).policy, seed)
