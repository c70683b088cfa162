"""The policy of A2C, PPO and their kin: torso, optional core, an action head and a value head.

Acting::

    state = policy.initial_state(num_envs)
    while True:
        out, state = policy.step(obs, state, reset, rng)     # obs leaves [B, ...]

Learning::

    dist, value = policy.unroll(obs, state, reset)           # obs leaves [T, B, ...]

Shapes: T steps, B environments, N = T * B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.core.spec import ACTION_MASK, ArraySpec
from rookery.core.tensors import Tensors
from rookery.nets.cores import Core, CoreName
from rookery.nets.encoder import Encoder
from rookery.nets.heads import ActionDist, ActionHead, Noise
from rookery.nets.initialize import Initializer, initialize
from rookery.nets.torsos import build_torso
from rookery.ops.policy_gradient import Total


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The network."""

    torso: str = "auto"
    """auto (conv2d for images, else mlp), mlp, conv1d, conv2d, or package.module:Class."""
    torso_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for a torso of your own."""
    hidden: tuple[int, ...] = (64, 64)
    """Sizes of the dense layers (after the convolutions, if any)."""
    activation: str = "tanh"
    """tanh, relu, elu, silu or gelu."""
    core: CoreName = "none"
    """Memory between torso and heads."""
    core_size: int = 128
    """Size of the recurrent state."""
    shared_torso: bool | None = None
    """One torso for policy and value; null: shared with a core or images, else one each."""
    init: Initializer = "orthogonal"
    """How weights start."""
    normalize_obs: bool = False
    """Normalise float observations by their running mean and deviation."""
    log_std_init: float = -0.5
    """Starting log standard deviation of a Box action, in units where its bounds are -1 and 1."""

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.hidden):
            raise UserError(f"policy.hidden: sizes must be positive, got {list(self.hidden)}")
        if self.core_size < 1:
            raise UserError(f"policy.core_size: must be positive, got {self.core_size}")
        if self.core != "none" and self.shared_torso is False:
            raise UserError(
                "policy.shared_torso: a recurrent core needs one torso for policy and value; "
                "set it to true or core to none"
            )


class ActionOut(NamedTuple):
    """What acting gives, each ``[B, ...]``."""

    action: Tensor
    log_prob: Tensor
    value: Tensor


class ActorCritic(nn.Module):
    """Actor and critic behind the interface in this module's docstring."""

    def __init__(self, config: PolicyConfig, signature: Signature) -> None:
        super().__init__()
        self.config = config
        self.signature = signature
        self.encoder = Encoder(signature.obs, config.normalize_obs)
        self.torso = self._build_torso()
        width = self.torso.out_features
        self.core = Core(config.core, width, config.core_size) if config.core != "none" else None
        width = config.core_size if self.core is not None else width
        self.value_torso = None if self._shared() else self._build_torso()
        self.action_head = ActionHead(
            width, signature.action, init=config.init, log_std_init=config.log_std_init
        )
        self.value_head = nn.Linear(width, 1)
        initialize(self.value_head, config.init, gain=1.0)

    def _build_torso(self) -> Any:
        config = self.config
        return build_torso(
            config.torso,
            self.encoder.shapes,
            hidden=config.hidden,
            activation=config.activation,
            init=config.init,
            kwargs=config.torso_kwargs,
        )

    def _shared(self) -> bool:
        if self.config.shared_torso is not None:
            return self.config.shared_torso
        images = any(len(shape) == 3 for shape in self.encoder.shapes.values())
        return self.config.core != "none" or images

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.value_head.weight.device

    @property
    def recurrent(self) -> bool:
        """Whether the policy carries a state from step to step."""
        return self.core is not None

    @property
    def state_spec(self) -> Mapping[str, ArraySpec]:
        """Leaves of the recurrent state of one environment."""
        return self.core.state_spec if self.core is not None else {}

    def initial_state(self, num_envs: int) -> Tensors:
        """The state before an episode, leaves ``[B, ...]``."""
        return {
            name: torch.zeros((num_envs, *spec.shape), device=self.device)
            for name, spec in self.state_spec.items()
        }

    def step(
        self, obs: Tensors, state: Tensors, reset: Tensor, rng: Noise | None
    ) -> tuple[ActionOut, Tensors]:
        """Act on ``obs`` ``[B, ...]``; ``rng=None`` takes the most likely action."""
        dist, value, state = self.distribution(obs, state, reset)
        action = dist.mode() if rng is None else dist.sample(rng)
        return ActionOut(action, dist.log_prob(action), value), state

    def distribution(
        self, obs: Tensors, state: Tensors, reset: Tensor
    ) -> tuple[ActionDist, Tensor, Tensors]:
        """What :meth:`step` chooses from, V of ``obs`` ``[B, ...]``, and the state afterwards."""
        features, critic, state = self._step_features(obs, state, reset)
        dist = self.action_head(features, obs.get(ACTION_MASK))
        return dist, self._value_of(critic), state

    def value(self, obs: Tensors, state: Tensors, reset: Tensor) -> Tensor:
        """V of ``obs`` ``[B, ...]``."""
        return self._value_of(self._step_features(obs, state, reset)[1])

    def unroll(self, obs: Tensors, state: Tensors, reset: Tensor) -> tuple[ActionDist, Tensor]:
        """Distribution and value over ``[T, B]`` (over ``[N]`` when not recurrent)."""
        features, critic, _ = self._features(obs, state, reset)
        return self.action_head(features, obs.get(ACTION_MASK)), self._value_of(critic)

    def _value_of(self, features: Tensor) -> Tensor:
        value: Tensor = self.value_head(features).squeeze(-1)
        return value

    def _step_features(
        self, obs: Tensors, state: Tensors, reset: Tensor
    ) -> tuple[Tensor, Tensor, Tensors]:
        """Features of one step: a sequence of length one where there is a core."""
        if self.core is None:
            return self._features(obs, state, reset)
        sequence = {name: leaf[None] for name, leaf in obs.items()}
        features, critic, state = self._features(sequence, state, reset[None])
        return features[0], critic[0], state

    def _features(
        self, obs: Tensors, state: Tensors, reset: Tensor
    ) -> tuple[Tensor, Tensor, Tensors]:
        """Features for the action head, for the value head, and the state afterwards."""
        if self.core is None:
            encoded = self.encoder(obs)
            features = self.torso(encoded)
            critic = features if self.value_torso is None else self.value_torso(encoded)
            return features, critic, state
        encoded = self.encoder({name: leaf.flatten(0, 1) for name, leaf in obs.items()})
        features = self.torso(encoded).view(*reset.shape, -1)
        features, state = self.core(features, state, reset)
        return features, features, state

    def update_moments(self, obs: Tensors, mask: Tensor, total: Total = lambda sums: sums) -> None:
        """Add observations ``[T, B, ...]`` where ``mask`` to the running statistics.

        ``total`` adds sums up over all who learn together.
        """
        self.encoder.update_moments(obs, mask, total)

    def refreshed(self) -> None:
        """Call after weights were written from outside: forget what was derived from them."""
        self.encoder.forget_cache()
