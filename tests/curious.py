"""Small curious networks and steps made by hand, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rookery.algos.agent57 import Agent57Config
from rookery.algos.ngu import NGUConfig
from rookery.core.signature import Signature
from rookery.core.spec import Array
from rookery.envs.spaces import action_leaf, obs_leaves
from rookery.envs.transition import StepResult
from rookery.nets.curious import CuriousQNetwork
from rookery.nets.policy import PolicyConfig

FLAT: dict[str, Any] = {
    "length": 1,
    "burn_in": 0,
    "batch_size": 8,
    "capacity_steps": 1_000,
    "learning_starts": 100,
}
SMALL_FAMILY: dict[str, Any] = {"num_arms": 4}
FEATURES = 3


def signature(space: spaces.Space[Any] | None = None) -> Signature:
    """Of an environment with 4 actions that shows 3 numbers, or ``space``."""
    obs = space or spaces.Box(-9.0, 9.0, (FEATURES,), np.float32)
    return Signature(obs=obs_leaves(obs), action=action_leaf(spaces.Discrete(4)))


def network(
    config: NGUConfig | Agent57Config, policy: PolicyConfig | None = None, **kwargs: Any
) -> CuriousQNetwork:
    """The network of ``config``, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return CuriousQNetwork(
            policy or PolicyConfig(hidden=(8,)), signature(**kwargs), **config.network_settings
        )


def step_result(obs: Array, **given: Any) -> StepResult:
    """A step of some environments that led to ``obs`` ``[B, 3]``; flags not given are False."""
    num = len(obs)

    def flags(name: str, default: bool = False) -> Array:
        return np.asarray(given.get(name, [default] * num), np.bool_)

    terminated, truncated = flags("terminated"), flags("truncated")
    final = given.get("final")
    return StepResult(
        obs={"obs": np.asarray(obs, np.float32)},
        reward=np.asarray(given.get("reward", [0.0] * num), np.float64),
        terminated=terminated,
        truncated=truncated,
        valid=flags("valid", True),
        reset=flags("reset") | terminated | truncated,
        final_obs=None if final is None else {"obs": np.asarray(final, np.float32)},
        whole_ended=None if "whole_ended" not in given else flags("whole_ended"),
    )
