"""What every policy is made of: an encoder, a torso, and an optional core before its heads.

A policy acts by :meth:`Policy.step`, whichever algorithm taught it::

    state = policy.initial_state(num_envs)
    while True:
        out, state = policy.step(obs, state, reset, rng)     # obs leaves [B, ...]

Shapes: T steps, B environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec
from rookery.core.tensors import Tensors
from rookery.nets.cores import Core, CoreName
from rookery.nets.encoder import Encoder
from rookery.nets.heads import ActionDist, Noise
from rookery.nets.initialize import Initializer
from rookery.nets.torsos import Shapes, build_torso
from rookery.ops.policy_gradient import Total


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The network."""

    torso: str = "auto"
    """auto (conv2d for images, grid for those below 36x36, else mlp), mlp, conv1d, conv2d (Nature),
    conv2d_small (A3C), resnet (IMPALA), ba3c, grid (MinAtar), or package.module:Class."""
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
    normalize_images: bool = False
    """Likewise each pixel of byte images [channels, height, width]."""
    log_std_init: float = -0.5
    """Starting log standard deviation of a Box action, in units where its bounds are -1 and 1."""
    log_std_min: float | None = None
    """A floor it approaches but does not cross; null: none."""
    state_log_std: bool = False
    """The deviation depends on the observation; false: it is one parameter per action element."""
    squash_mean: bool = False
    """The mean of a Box action goes through tanh, so that it stays within the bounds."""
    dueling: bool = False
    """Action values are a state's value and each action's advantage; for dqn and its kin."""
    value_gain: float = 1.0
    """How large action values are at first; 0: all are 0, so that none is preferred by chance."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """What torsos compute in; weights stay float32. auto: bf16 if this machine trains images faster
    with it, which is tried when a run begins, else fp32."""

    def __post_init__(self) -> None:
        if self.log_std_min is not None and self.log_std_min >= self.log_std_init:
            raise UserError(
                f"policy.log_std_min: {self.log_std_min:g} must be below policy.log_std_init, "
                f"which is {self.log_std_init:g}"
            )
        if self.value_gain < 0:
            raise UserError(f"policy.value_gain: must not be negative, got {self.value_gain:g}")
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


class Policy(nn.Module):
    """Observations to features; a subclass makes actions of them."""

    kind: ClassVar[str]
    """What a bundle calls it."""

    def __init__(
        self, config: PolicyConfig, signature: Signature, inputs: Shapes | None = None
    ) -> None:
        """``inputs`` are what the torso gets beside the encoded observation."""
        super().__init__()
        self.config = config
        self.signature = signature
        self.settings: dict[str, Any] = {}
        """Keyword arguments beside ``config`` and ``signature`` that make another of its kind."""
        self.encoder = Encoder(signature.obs, config.normalize_obs, config.normalize_images)
        self.torso = self._build_torso(inputs)
        width: int = self.torso.out_features
        self.core = Core(config.core, width, config.core_size) if config.core != "none" else None
        self.out_features = config.core_size if self.core is not None else width
        """Features that a head gets."""

    def distribution(
        self, obs: Tensors, state: Tensors, reset: Tensor
    ) -> tuple[ActionDist, Tensor, Tensors]:
        """What :meth:`step` chooses from, V of ``obs`` ``[B, ...]``, and the state afterwards."""
        raise NotImplementedError

    def step(
        self, obs: Tensors, state: Tensors, reset: Tensor, rng: Noise | None
    ) -> tuple[ActionOut, Tensors]:
        """Act on ``obs`` ``[B, ...]``; ``rng=None`` takes the most likely action."""
        dist, value, state = self.distribution(obs, state, reset)
        action = dist.mode() if rng is None else dist.sample(rng)
        return ActionOut(action, dist.log_prob(action), value), state

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

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

    def update_moments(self, obs: Tensors, mask: Tensor, total: Total = lambda sums: sums) -> None:
        """Add observations ``[T, B, ...]`` where ``mask`` to the running statistics.

        ``total`` adds sums up over all who learn together.
        """
        self.encoder.update_moments(obs, mask, total)

    def refreshed(self) -> None:
        """Call after weights were written from outside: forget what was derived from them."""
        self.encoder.forget_cache()

    def _build_torso(self, inputs: Shapes | None = None) -> Any:
        config = self.config
        return build_torso(
            config.torso,
            {**self.encoder.shapes, **(inputs or {})},
            hidden=config.hidden,
            activation=config.activation,
            init=config.init,
            kwargs=config.torso_kwargs,
        )

    def _through(self, torso: Callable[[Tensors], Tensor], encoded: Tensors) -> Tensor:
        """Features ``[N, ...]``, computed in the configured precision."""
        if self.config.precision != "bf16":
            return torso(encoded)
        with torch.autocast(self.device.type, torch.bfloat16):
            return torso(encoded).float()
