"""What a learner asks of an algorithm, and the algorithms by name.

The learner's loop::

    batch = algorithm.prepare(rollout)
    for minibatch in algorithm.minibatches(batch, rng):     # epochs included
        loss, metrics = algorithm.loss(policy, minibatch, steps)
        ... backward, clip, optimizer step ...
    metrics |= algorithm.report(batch)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rookery.algos.on_policy import OnPolicyConfig
from rookery.algos.settings import AlgorithmConfig
from rookery.core.errors import naming
from rookery.core.group import Alone, Group
from rookery.core.names import load_class
from rookery.core.records import Rollout
from rookery.core.tensors import Tensors
from rookery.nets.normalizer import RunningMoments

if TYPE_CHECKING:
    from rookery.nets.actor_critic import ActorCritic


class AnyBatch(Protocol):
    """What the learner itself reads of an algorithm's batches and minibatches."""

    @property
    def obs(self) -> Tensors:
        """Leaves ``[T, B, ...]``: the observations acted on, for running statistics."""
        ...

    @property
    def mask(self) -> Tensor:
        """1 where a step counts: what a gradient weighs among those of a group."""
        ...


class Algorithm(Protocol):
    """A loss over batches, with the state it needs beside the networks.

    A class is built as ``Class(config, recurrent=..., device=..., group=...)`` and names the
    dataclass of its settings as ``Class.Config``. ``Class.off_policy = True`` says that it may
    learn from what older weights did; ``Class.Policy`` names another policy than an actor-critic.
    Those that learn from replay (``Config.experience``) offer what :class:`~rookery.algos.dqn.DQN`
    does instead.
    """

    config: OnPolicyConfig

    def prepare(self, rollout: Rollout) -> AnyBatch:
        """Targets and advantages of what the actors brought, once per update."""
        ...

    def minibatches(self, batch: AnyBatch, rng: np.random.Generator) -> Iterator[AnyBatch]:
        """Every minibatch of every epoch of one update."""
        ...

    def loss(self, policy: ActorCritic, batch: AnyBatch, steps: int) -> tuple[Tensor, Tensors]:
        """The scalar to minimise and detached scalars to report, at an absolute step."""
        ...

    def report(self, batch: AnyBatch) -> dict[str, float]:
        """What the batch as a whole tells, beside the means over its minibatches."""
        ...

    def moments(self) -> dict[str, RunningMoments]:
        """Running statistics, by name, that all who learn together must have in common."""
        ...

    def state_tensors(self) -> Tensors:
        """State beside the networks, such as reward statistics."""
        ...

    def load_state_tensors(self, tensors: Tensors) -> None:
        """Continue from :meth:`state_tensors`."""
        ...


_OURS = {
    "a2c": "rookery.algos.a2c:A2C",
    "agent57": "rookery.algos.agent57:Agent57",
    "apex": "rookery.algos.dqn:ApeX",
    "dqn": "rookery.algos.dqn:DQN",
    "impala": "rookery.algos.impala:IMPALA",
    "ngu": "rookery.algos.ngu:NGU",
    "ppo": "rookery.algos.ppo:PPO",
    "r2d2": "rookery.algos.dqn:R2D2",
}


def algorithm_names() -> list[str]:
    """Names for ``--algo``; ``package.module:Class`` is one too."""
    return sorted(_OURS)


def algorithm_class(name: str) -> Any:
    """The class called ``name``: one of ours, or ``package.module:Class``."""
    made_from = "rookery.algos.on_policy:OnPolicyConfig or rookery.algos.dqn:DQNConfig"
    return load_class(name, _OURS, "--algo", AlgorithmConfig, made_from)


def block_name(name: str) -> str:
    """What its settings are called: ``ppo``, or ``reinforce`` for ``mine:Reinforce``."""
    return name.rpartition(":")[2].lower()


def config_class(name: str) -> type[AlgorithmConfig]:
    """The config dataclass of the algorithm called ``name``."""
    found: type[AlgorithmConfig] = algorithm_class(name).Config
    return found


def policy_class(name: str) -> Any:
    """The kind of policy that the algorithm called ``name`` teaches."""
    from rookery.nets.actor_critic import ActorCritic

    return getattr(algorithm_class(name), "Policy", ActorCritic)


def usual_formation(name: str) -> str:
    """The formation of the algorithm called ``name`` where none is asked for."""
    return "replay" if config_class(name).experience == "replay" else "sync"


def learns_off_policy(name: str) -> bool:
    """Whether the algorithm called ``name`` may learn from what older weights did."""
    return bool(getattr(algorithm_class(name), "off_policy", False))


def build_algorithm(
    name: str,
    config: AlgorithmConfig,
    *,
    recurrent: bool,
    device: torch.device,
    group: Group | None = None,
) -> Algorithm:
    """The algorithm called ``name``, learning together with ``group``."""
    found = algorithm_class(name)
    with naming(algo=block_name(name)):
        built: Algorithm = found(config, recurrent=recurrent, device=device, group=group or Alone())
    return built
