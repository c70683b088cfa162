"""The acting network: one step of a policy, from the environment's own values to its own actions.

::

    network = ActingNetwork(policy)
    outputs = network({"obs": obs, "state.h": h, "reset": reset})      # [B, ...] each
    outputs["action"], outputs["value"], outputs["new_state.h"]

Inputs and outputs are flat mappings, so that every kind of file can name them. Shapes: B rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from rookery.core.action import UNBOUNDED
from rookery.core.spec import ACTION_MASK, Array, ArraySpec, LeafSpec
from rookery.core.tensors import Tensors
from rookery.nets.heads import ActionDist, Bernoulli, Categorical, Gaussian, MultiCategorical
from rookery.nets.policy import Policy

OBS, STATE, NEW_STATE, RESET = "obs", "state.", "new_state.", "reset"
ACTION, VALUE = "action", "value"


class ActingNetwork(nn.Module):
    """A policy with its normalisation in front and its action in the environment's form behind."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.leaf_of = obs_names(policy)
        """Leaf of the observation by name of the input."""
        self.inputs = dict(_input_specs(policy, self.leaf_of))
        """Shape (without B) and dtype by name."""
        self.carried = nn.ModuleDict(
            {str(i): _Carried(policy.signature.obs[leaf]) for i, leaf in _numbered(self.leaf_of)}
        )
        self.env_action = _EnvAction(policy.signature.action)

    def forward(self, inputs: Tensors) -> Tensors:
        """Outputs by name, each ``[B, ...]``."""
        names = list(self.leaf_of)
        obs = {leaf: self.carried[str(i)](inputs[names[i]]) for i, leaf in _numbered(self.leaf_of)}
        state = {leaf: inputs[STATE + leaf] for leaf in self.policy.state_spec}
        first = inputs[names[0]]
        reset = inputs[RESET] if state else first.new_zeros(first.shape[:1], dtype=torch.bool)
        dist, value, state = self.policy.distribution(obs, state, reset)
        return {
            ACTION: self.env_action(dist.mode()),
            **parameters(dist),
            VALUE: value,
            **{NEW_STATE + leaf: after for leaf, after in state.items()},
        }


def _numbered(leaf_of: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Leaves by their number: names of leaves may hold what names of modules may not."""
    return enumerate(leaf_of.values())


def obs_names(policy: Policy) -> dict[str, str]:
    """The leaf of the observation by the name of its input: obs, or obs.LEAF if there are more."""
    leaves = policy.signature.obs
    plain = set(leaves) - {ACTION_MASK} == {OBS}
    return {leaf if leaf == ACTION_MASK or plain else f"{OBS}.{leaf}": leaf for leaf in leaves}


def _input_specs(policy: Policy, leaf_of: dict[str, str]) -> Iterator[tuple[str, ArraySpec]]:
    for name, leaf in leaf_of.items():
        spec = policy.signature.obs[leaf]
        form = spec.env_form
        yield name, spec.array if form is None else ArraySpec(form.shape, form.dtype)
    for leaf, array in policy.state_spec.items():
        yield STATE + leaf, array
    if policy.state_spec:
        yield RESET, ArraySpec((), np.dtype(np.bool_))


def parameters(dist: ActionDist) -> Tensors:
    """What describes a distribution, by name."""
    if isinstance(dist, Categorical):
        return {"log_probs": dist.log_probs}
    if isinstance(dist, MultiCategorical):
        return {"log_probs": torch.cat([part.log_probs for part in dist.parts], -1)}
    if isinstance(dist, Bernoulli):
        return {"logits": dist.logits}
    assert isinstance(dist, Gaussian)
    return {"mean": dist.mean, "log_std": dist.log_std.expand_as(dist.mean)}


class _Carried(nn.Module):
    """:func:`rookery.core.action.from_env_form` in torch."""

    start: Tensor | None

    def __init__(self, leaf: LeafSpec) -> None:
        super().__init__()
        self.leaf = leaf
        self.register_buffer("start", _start(leaf))

    def forward(self, values: Tensor) -> Tensor:
        """The environment's own values ``[B, ...]`` as they are carried."""
        if self.leaf.env_form is None:
            return values
        if self.start is not None:
            values = values - self.start
        return values.to(_dtype(self.leaf.dtype)).reshape(values.shape[0], *self.leaf.shape)


class _EnvAction(nn.Module):
    """:func:`rookery.core.action.to_env_form` in torch."""

    low: Tensor | None
    high: Tensor | None
    start: Tensor | None

    def __init__(self, leaf: LeafSpec) -> None:
        super().__init__()
        self.leaf = leaf
        self.register_buffer("low", _bound(leaf, leaf.low, -np.inf))
        self.register_buffer("high", _bound(leaf, leaf.high, np.inf))
        self.register_buffer("start", _start(leaf))

    def forward(self, action: Tensor) -> Tensor:
        """Actions ``[B, n]`` of a policy as ``Env.step`` takes them."""
        fitted = self._in_env_units(action).reshape(action.shape[0], *self.leaf.shape)
        form = self.leaf.env_form
        if form is None:
            return fitted
        moved = fitted.to(_dtype(form.dtype))
        if self.low is not None and self.high is not None:
            moved = torch.clamp(moved, self.low, self.high)
        moved = moved.reshape(action.shape[0], *form.shape)
        return moved if self.start is None else moved + self.start

    def _in_env_units(self, action: Tensor) -> Tensor:
        low, high = self.low, self.high
        if low is None or high is None:
            return action
        bounded = (low.abs() < UNBOUNDED) & (high.abs() < UNBOUNDED)
        # Where a bound is infinite the product would be too: it is not taken, but must be a number.
        span = torch.where(bounded, high - low, 0.0)
        base = torch.where(bounded, low, 0.0)
        scaled = base + (torch.clamp(action, -1.0, 1.0) + 1.0) * 0.5 * span
        free = torch.clamp(action.to(low.dtype), low, high)
        return torch.where(bounded, scaled, free).to(_dtype(self.leaf.dtype))


def _bound(leaf: LeafSpec, bound: Array | None, default: float) -> Tensor | None:
    """A bound ``[n]`` of a Box, None where the action has neither bound."""
    if leaf.kind != "box" or (leaf.low is None and leaf.high is None):
        return None
    if bound is None:
        return torch.full(leaf.shape, default)
    return torch.from_numpy(bound.reshape(-1).copy())


def _start(leaf: LeafSpec) -> Tensor | None:
    form = leaf.env_form
    if form is None or not form.start:
        return None
    return torch.from_numpy(np.reshape(form.start, form.shape).astype(form.dtype))


def _dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
