"""The policy of DQN and its kin: the value of each action, plain or dueling.

Acting is greedy, or epsilon-greedy if there is randomness to act with. Learning::

    parts = network.unroll(obs, state, reset)        # obs leaves [T, N, ...] -> [R, T, N, A]
    values = network.mixed(parts, obs)               # [T, N, A], what is acted by

Shapes: T steps, N sequences, B environments, A actions, R rewards that are learned apart (1, unless
a network is made of several).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.core.spec import ACTION_MASK
from rookery.core.tensors import Tensors
from rookery.nets.heads import ActionDist, Categorical
from rookery.nets.initialize import initialize
from rookery.nets.policy import Policy, PolicyConfig
from rookery.ops.q_learning import dueling_q_values

ARM = "family/arm"
"""Leaf of an observation, which actors and learners add: the number of the policy of a family that
acts on it. Where it is missing, as in evaluation, it is the first, which knows no bonus."""

LAST = "family/last"
"""Another, ``[..., 3]``: the action before it, counted from 1, and what is seen of the two rewards
that it brought; zeros where an episode begins. Only exploring arms see it, so that the first can be
played by who does not know intrinsic rewards."""

PLAY_EPSILON = 0.02
"""How often a choice is left to chance by a policy that is asked not to be deterministic."""


class QNetwork(Policy):
    """Values ``[..., A]`` of the actions of a Discrete space."""

    kind = "q-network"

    def __init__(
        self,
        config: PolicyConfig,
        signature: Signature,
        *,
        num_arms: int = 0,
        history: bool = False,
    ) -> None:
        """With ``num_arms``, the values of each policy of a family: see :data:`ARM`, and
        :data:`LAST` for ``history``."""
        num = num_actions(signature)
        inputs = ({ARM: (num_arms,)} if num_arms else {}) | ({LAST: (num + 3,)} if history else {})
        super().__init__(config, signature, inputs)
        self.num_arms, self.history = num_arms, history
        self.play_epsilon = PLAY_EPSILON
        self.num_actions = num
        self.advantage_head = self._head(self.num_actions)
        self.state_head = self._head(1) if config.dueling else None

    def _head(self, size: int) -> nn.Linear:
        head = nn.Linear(self.out_features, size)
        initialize(head, self.config.init, gain=self.config.value_gain)
        return head

    def distribution(
        self, obs: Tensors, state: Tensors, reset: Tensor
    ) -> tuple[ActionDist, Tensor, Tensors]:
        """The best action nearly always; its value; and the state afterwards."""
        values, state = self.values(obs, state, reset)
        best = legal_values(values, obs)
        return greedy(best, self.play_epsilon, obs.get(ACTION_MASK)), best.amax(-1), state

    def values(self, obs: Tensors, state: Tensors, reset: Tensor) -> tuple[Tensor, Tensors]:
        """``[B, A]`` of ``obs`` ``[B, ...]``, and the state afterwards."""
        if self.core is None:
            return self._values_now(obs), state
        sequence = {name: leaf[None] for name, leaf in obs.items()}
        values, state = self._recall(sequence, state, reset[None])
        return values[0], state

    def parts(self, obs: Tensors) -> Tensor:
        """``[R, B, A]`` of ``obs`` ``[B, ...]``, of a network without a memory."""
        return self._values_now(obs)[None]

    def unroll(self, obs: Tensors, state: Tensors, reset: Tensor) -> Tensor:
        """``[R, T, N, A]`` of ``obs`` ``[T, N, ...]``."""
        if self.core is not None:
            return self._recall(obs, state, reset)[0][None]
        return self._values_of(self._features(obs, reset))[None]

    def mixed(self, parts: Tensor, obs: Tensors) -> Tensor:
        """``[..., A]`` what is acted by, of the parts ``[R, ..., A]`` for ``obs``."""
        return parts[0]

    def share_encoder(self, other: QNetwork) -> None:
        """See observations with the running statistics of ``other``."""
        self.encoder = other.encoder

    def remember(self, obs: Tensors, state: Tensors, reset: Tensor) -> Tensors:
        """The state after ``obs`` ``[T, N, ...]``, for nothing else."""
        if self.core is None:
            return state
        return self.core(self._features(obs, reset), state, reset)[1]  # type: ignore[no-any-return]

    def _values_now(self, obs: Tensors) -> Tensor:
        return self._values_of(self._through(self.torso, self._encoded(obs)))

    def _recall(self, obs: Tensors, state: Tensors, reset: Tensor) -> tuple[Tensor, Tensors]:
        assert self.core is not None
        features, state = self.core(self._features(obs, reset), state, reset)
        return self._values_of(features), state

    def _features(self, obs: Tensors, reset: Tensor) -> Tensor:
        """What the torso makes of ``obs`` ``[T, N, ...]``."""
        encoded = self._encoded({name: leaf.flatten(0, 1) for name, leaf in obs.items()})
        return self._through(self.torso, encoded).view(*reset.shape, -1)

    def _encoded(self, obs: Tensors) -> Tensors:
        """What the torso gets of ``obs`` ``[N, ...]``."""
        encoded: Tensors = self.encoder(obs)
        if self.num_arms:
            (rows,) = next(iter(encoded.values())).shape[:1]
            arm = obs.get(ARM, torch.zeros(rows, dtype=torch.int64, device=self.device))
            encoded = {**encoded, ARM: functional.one_hot(arm, self.num_arms).float()}
            if self.history:
                last = obs.get(LAST, torch.zeros((rows, 3), device=self.device))
                action = functional.one_hot(last[:, 0].long(), self.num_actions + 1)
                seen = torch.cat([action, last[:, 1:]], -1)
                encoded[LAST] = seen * (arm > 0)[:, None]
        return encoded

    def _values_of(self, features: Tensor) -> Tensor:
        advantage: Tensor = self.advantage_head(features)
        if self.state_head is None:
            return advantage
        return dueling_q_values(self.state_head(features), advantage)


def num_actions(signature: Signature) -> int:
    """How many actions there are to choose from."""
    action = signature.action
    if action.kind != "discrete":
        raise UserError(
            f"dqn and its kin value each action of a Discrete space, and this environment's is "
            f"{action.kind}; use --algo ppo, a2c or impala"
        )
    return action.sizes[0]


def legal_values(values: Tensor, obs: Tensors) -> Tensor:
    """``values`` ``[..., A]``, and the least there is for actions that ``obs`` forbids."""
    mask = obs.get(ACTION_MASK)
    return values if mask is None else values.masked_fill(~mask.bool(), -torch.inf)


def greedy(values: Tensor, epsilon: float, mask: Tensor | None) -> Categorical:
    """The action of the highest value, or with odds ``epsilon`` any legal one."""
    legal = torch.ones_like(values) if mask is None else mask.to(values.dtype)
    odds = epsilon * legal / legal.sum(-1, keepdim=True)
    best = functional.one_hot(values.argmax(-1), values.shape[-1])
    return Categorical((odds + (1.0 - epsilon) * best).log().clamp(min=math.log(1e-12)))
