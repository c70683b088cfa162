"""The policy of A2C, PPO and their kin: torso, optional core, an action head and a value head.

Learning::

    dist, value = policy.unroll(obs, state, reset)           # obs leaves [T, B, ...]

Shapes: T steps, B environments, N = T * B.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rookery.core.signature import Signature
from rookery.core.spec import ACTION_MASK
from rookery.core.tensors import Tensors
from rookery.nets.heads import ActionDist, ActionHead
from rookery.nets.initialize import initialize
from rookery.nets.policy import Policy, PolicyConfig


class ActorCritic(Policy):
    """Actor and critic, on one torso or on one each."""

    kind = "actor-critic"

    def __init__(self, config: PolicyConfig, signature: Signature) -> None:
        super().__init__(config, signature)
        self.value_torso = None if self._shared() else self._build_torso()
        self.action_head = ActionHead(
            self.out_features,
            signature.action,
            init=config.init,
            log_std_init=config.log_std_init,
            log_std_min=config.log_std_min,
            state_log_std=config.state_log_std,
            squash_mean=config.squash_mean,
        )
        self.value_head = nn.Linear(self.out_features, 1)
        initialize(self.value_head, config.init, gain=1.0)

    def _shared(self) -> bool:
        if self.config.shared_torso is not None:
            return self.config.shared_torso
        images = any(len(shape) == 3 for shape in self.encoder.shapes.values())
        return self.config.core != "none" or images

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

    def unroll_beyond(
        self, obs: Tensors, state: Tensors, reset: Tensor
    ) -> tuple[ActionDist, Tensor]:
        """Distribution over the first T of T+1 observations, values of all: ``[T+1, B]``.

        The last one was not acted on; its value is what follows the last step, and no gradient
        flows through it.
        """
        then = reset[:-1]
        acted = {name: leaf[:-1] for name, leaf in obs.items()}
        if self.core is None:
            flat = {name: leaf.flatten(0, 1) for name, leaf in acted.items()}
            features, critic, _ = self._features(flat, state, then.flatten())
            features, critic = (part.view(*then.shape, -1) for part in (features, critic))
        else:
            features, critic, state = self._features(acted, state, then)
        with torch.no_grad():
            beyond = self.value({name: leaf[-1] for name, leaf in obs.items()}, state, reset[-1])
        dist = self.action_head(features, acted.get(ACTION_MASK))
        return dist, torch.cat([self._value_of(critic), beyond[None]])

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
            features = self._through(self.torso, encoded)
            critic = (
                features if self.value_torso is None else self._through(self.value_torso, encoded)
            )
            return features, critic, state
        encoded = self.encoder({name: leaf.flatten(0, 1) for name, leaf in obs.items()})
        features = self._through(self.torso, encoded).view(*reset.shape, -1)
        features, state = self.core(features, state, reset)
        return features, features, state
