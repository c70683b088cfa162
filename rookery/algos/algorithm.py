"""What a learner asks of an algorithm, and the algorithms by name.

The learner's loop::

    batch = algorithm.prepare(rollout)
    for minibatch in algorithm.minibatches(batch, rng):     # epochs included
        loss, metrics = algorithm.loss(policy, minibatch, steps)
        ... backward, clip, optimizer step ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rookery.algos.on_policy import Batch, OnPolicyConfig
from rookery.core.errors import UserError, near_names
from rookery.core.group import Alone, Group
from rookery.core.names import load_object
from rookery.core.records import Rollout
from rookery.core.tensors import Tensors

if TYPE_CHECKING:
    from rookery.nets.actor_critic import ActorCritic


class Algorithm(Protocol):
    """A loss over batches, with the state it needs beside the networks.

    A class is built as ``Class(config, recurrent=..., device=..., group=...)`` and names the
    dataclass of its settings as ``Class.Config``.
    """

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


_OURS = {"a2c": "rookery.algos.a2c:A2C", "ppo": "rookery.algos.ppo:PPO"}


def algorithm_names() -> list[str]:
    """Names for ``--algo``; ``package.module:Class`` is one too."""
    return sorted(_OURS)


def algorithm_class(name: str) -> Any:
    """The class called ``name``: one of ours, or ``package.module:Class``."""
    if ":" not in name and name not in _OURS:
        raise UserError(
            f"--algo: unknown '{name}'{near_names(name, _OURS)} "
            f"(one of {', '.join(algorithm_names())}, or package.module:Class)"
        )
    found = load_object(_OURS.get(name, name), "--algo")
    config = getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, OnPolicyConfig)):
        raise UserError(
            f"--algo: {name} needs a class attribute Config, a dataclass made from "
            "rookery.algos.on_policy:OnPolicyConfig"
        )
    return found


def block_name(name: str) -> str:
    """What its settings are called: ``ppo``, or ``reinforce`` for ``mine:Reinforce``."""
    return name.rpartition(":")[2].lower()


def config_class(name: str) -> type[OnPolicyConfig]:
    """The config dataclass of the algorithm called ``name``."""
    found: type[OnPolicyConfig] = algorithm_class(name).Config
    return found


def build_algorithm(
    name: str,
    config: OnPolicyConfig,
    *,
    recurrent: bool,
    device: torch.device,
    group: Group | None = None,
) -> Algorithm:
    """The algorithm called ``name``, learning together with ``group``."""
    found = algorithm_class(name)
    built: Algorithm = found(config, recurrent=recurrent, device=device, group=group or Alone())
    return built
