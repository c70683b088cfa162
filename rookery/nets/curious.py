"""The policy of NGU and Agent57: values for each policy of a family, and what tells the new.

One network gives the values of extrinsic and intrinsic reward together, or (``split``) two give
them apart, and they are mixed by the arm's beta. The networks of
:class:`~rookery.nets.novelty.Novelty` are part of it, so that they are published and saved with it.

Shapes: T steps, N sequences, B environments, A actions, R = 2 rewards if split, else 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rookery.core.signature import Signature
from rookery.core.spec import ArraySpec
from rookery.core.tensors import Tensors
from rookery.nets.novelty import Novelty
from rookery.nets.policy import PolicyConfig
from rookery.nets.q_network import ARM, QNetwork
from rookery.ops.intrinsic import mixed_q_values

_INTRINSIC = "intrinsic_"


class CuriousQNetwork(QNetwork):
    """Values ``[..., A]`` of each arm of a family, the first of which has beta 0."""

    kind = "curious-q-network"
    betas: Tensor

    def __init__(
        self,
        config: PolicyConfig,
        signature: Signature,
        *,
        betas: Sequence[float],
        split: bool,
        rescaled: bool,
        history: bool,
        embedding_features: int,
        distilled_features: int,
    ) -> None:
        super().__init__(config, signature, num_arms=len(betas), history=history)
        self.settings = {
            "betas": list(betas),
            "split": split,
            "rescaled": rescaled,
            "history": history,
            "embedding_features": embedding_features,
            "distilled_features": distilled_features,
        }
        self.rescaled = rescaled
        self.register_buffer("betas", torch.tensor(betas), persistent=False)
        self.intrinsic: QNetwork | None = None
        if split:
            self.intrinsic = QNetwork(config, signature, num_arms=len(betas), history=history)
            self.share_encoder(self)
        self.novelty = Novelty(
            self._build_torso,
            self.num_actions,
            embedding_features=embedding_features,
            distilled_features=distilled_features,
        )

    def embed(self, obs: Tensors) -> Tensor:
        """``[N, D]`` the controllable state of ``obs`` ``[N, ...]``."""
        return self._through(self.novelty.embedding, self.encoder(obs))

    def novelty_errors(self, obs: Tensors) -> Tensor:
        """``[N]`` what the predictor does not know of ``obs`` ``[N, ...]``."""
        return self._through(self.novelty.errors, self.encoder(obs))

    @property
    def state_spec(self) -> Mapping[str, ArraySpec]:
        """Leaves of both networks."""
        own = dict(super().state_spec)
        if self.intrinsic is None:
            return own
        return own | {_INTRINSIC + name: leaf for name, leaf in self.intrinsic.state_spec.items()}

    def values(self, obs: Tensors, state: Tensors, reset: Tensor) -> tuple[Tensor, Tensors]:
        """``[B, A]`` what is acted by, and the state afterwards."""
        if self.intrinsic is None:
            return super().values(obs, state, reset)
        own, other = _divided(state)
        extrinsic, own = super().values(obs, own, reset)
        intrinsic, other = self.intrinsic.values(obs, other, reset)
        return self.mixed(torch.stack([extrinsic, intrinsic]), obs), _joined(own, other)

    def parts(self, obs: Tensors) -> Tensor:
        """``[R, B, A]`` of ``obs`` ``[B, ...]``, of a network without a memory."""
        extrinsic = super().parts(obs)
        if self.intrinsic is None:
            return extrinsic
        return torch.cat([extrinsic, self.intrinsic.parts(obs)])

    def unroll(self, obs: Tensors, state: Tensors, reset: Tensor) -> Tensor:
        """``[R, T, N, A]`` of ``obs`` ``[T, N, ...]``."""
        if self.intrinsic is None:
            return super().unroll(obs, state, reset)
        own, other = _divided(state)
        extrinsic = super().unroll(obs, own, reset)
        return torch.cat([extrinsic, self.intrinsic.unroll(obs, other, reset)])

    def remember(self, obs: Tensors, state: Tensors, reset: Tensor) -> Tensors:
        """The states of both after ``obs`` ``[T, N, ...]``."""
        if self.intrinsic is None:
            return super().remember(obs, state, reset)
        own, other = _divided(state)
        own = super().remember(obs, own, reset)
        return _joined(own, self.intrinsic.remember(obs, other, reset))

    def mixed(self, parts: Tensor, obs: Tensors) -> Tensor:
        """``[..., A]``: ``Q_e + beta Q_i`` (Agent57, section 3.1), where they are apart."""
        arm = obs.get(ARM)
        if self.intrinsic is None or arm is None:  # the first arm has beta 0
            return parts[0]
        beta = self.betas[arm][..., None]
        if self.rescaled:
            return mixed_q_values(parts[0], parts[1], beta)
        return parts[0] + beta * parts[1]

    def share_encoder(self, other: QNetwork) -> None:
        """See observations with the running statistics of ``other``, in both networks."""
        super().share_encoder(other)
        if self.intrinsic is not None:
            self.intrinsic.share_encoder(other)


def _divided(state: Tensors) -> tuple[Tensors, Tensors]:
    """The states of the two networks."""
    other = {
        name.removeprefix(_INTRINSIC): leaf
        for name, leaf in state.items()
        if name.startswith(_INTRINSIC)
    }
    return {n: leaf for n, leaf in state.items() if not n.startswith(_INTRINSIC)}, other


def _joined(own: Tensors, other: Tensors) -> Tensors:
    return own | {_INTRINSIC + name: leaf for name, leaf in other.items()}
