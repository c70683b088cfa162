"""What a learner asks of an algorithm, and the algorithms by name.

The learner's loop::

    batch = algorithm.prepare(rollout)
    for minibatch in algorithm.minibatches(batch, rng):     # epochs included
        loss, metrics = algorithm.loss(policy, minibatch, steps)
        ... backward, clip, optimizer step ...
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rookery.algos.on_policy import Batch, OnPolicyConfig
from rookery.core.errors import UserError, near_names
from rookery.core.records import Rollout
from rookery.core.tensors import Tensors

if TYPE_CHECKING:
    from rookery.nets.actor_critic import ActorCritic


class Algorithm(Protocol):
    """A loss over batches, with the state it needs beside the networks."""

    config: OnPolicyConfig

    def prepare(self, rollout: Rollout) -> Batch:
        """Targets and advantages of what the actors brought, once per update."""
        ...

    def minibatches(self, batch: Batch, rng: np.random.Generator) -> Iterator[Batch]:
        """Every minibatch of every epoch of one update."""
        ...

    def loss(self, policy: ActorCritic, batch: Batch, steps: int) -> tuple[Tensor, Tensors]:
        """The scalar to minimise and detached scalars to report, at an absolute step."""
        ...

    def state_tensors(self) -> Tensors:
        """State beside the networks, such as reward statistics."""
        ...

    def load_state_tensors(self, tensors: Tensors) -> None:
        """Continue from :meth:`state_tensors`."""
        ...


_MODULES = {
    "a2c": ("rookery.algos.a2c", "A2C", "A2CConfig"),
    "ppo": ("rookery.algos.ppo", "PPO", "PPOConfig"),
}


def algorithm_names() -> list[str]:
    """Names for ``--algo``."""
    return sorted(_MODULES)


def _entry(name: str) -> tuple[Any, Any]:
    if name not in _MODULES:
        raise UserError(
            f"--algo: unknown '{name}'{near_names(name, _MODULES)} "
            f"(one of {', '.join(algorithm_names())})"
        )
    module_name, algorithm, config = _MODULES[name]
    module = importlib.import_module(module_name)
    return getattr(module, algorithm), getattr(module, config)


def config_class(name: str) -> type[OnPolicyConfig]:
    """The config dataclass of the algorithm called ``name``."""
    found: type[OnPolicyConfig] = _entry(name)[1]
    return found


def build_algorithm(config: OnPolicyConfig, *, recurrent: bool, device: torch.device) -> Algorithm:
    """The algorithm that ``config`` belongs to."""
    for name in _MODULES:
        algorithm, config_type = _entry(name)
        if type(config) is config_type:
            built: Algorithm = algorithm(config, recurrent=recurrent, device=device)
            return built
    raise TypeError(f"no algorithm takes a {type(config).__name__}")
