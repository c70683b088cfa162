"""Torsos: encoded observations ``[N, ...]`` to features ``[N, out_features]``.

Bring your own by ``policy.torso: package.module:Class``. It is called as
``Class(shapes, **policy.torso_kwargs)`` with the shape of each encoded leaf, must set
``out_features``, and ``forward`` gets a mapping of leaves ``[N, *shape]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from rookery.core.errors import UserError, near_names
from rookery.core.names import load_object
from rookery.core.tensors import Tensors
from rookery.nets.encoder import module_key
from rookery.nets.initialize import Initializer, initialize

Shapes = Mapping[str, tuple[int, ...]]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class Torso(Protocol):
    """What a policy asks of a torso."""

    out_features: int

    def __call__(self, obs: Tensors) -> Tensor:
        """Features ``[N, out_features]``."""
        ...


def activation(name: str) -> nn.Module:
    """An activation by name."""
    if name not in ACTIVATIONS:
        raise UserError(f"policy.activation: unknown '{name}'{near_names(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def dense(sizes: Sequence[int], act: str) -> nn.Sequential:
    """Linear layers through ``sizes``, each followed by the activation."""
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), activation(act)]
    return nn.Sequential(*layers)


class MLPTorso(nn.Module):
    """All leaves flattened, joined and passed through dense layers."""

    def __init__(
        self, shapes: Shapes, *, hidden: Sequence[int], activation: str, init: Initializer
    ) -> None:
        super().__init__()
        self.names = tuple(shapes)
        size = sum(_size(shape) for shape in shapes.values())
        self.layers = dense((size, *hidden), activation)
        self.out_features = hidden[-1] if hidden else size
        initialize(self.layers, init)

    def forward(self, obs: Tensors) -> Tensor:
        """Features ``[N, out_features]``."""
        if len(self.names) == 1:
            joined = obs[self.names[0]].flatten(1)
        else:
            joined = torch.cat([obs[name].flatten(1) for name in self.names], 1)
        features: Tensor = self.layers(joined)
        return features


class ConvTorso(nn.Module):
    """Each image (or sequence) leaf through its own convolutions, joined with the flat leaves.

    ``dims`` is 2 for images ``[C, H, W]`` (the layers of the Nature DQN) and 1 for sequences
    ``[C, L]`` (such as stacked feature vectors).
    """

    def __init__(
        self,
        shapes: Shapes,
        *,
        dims: int,
        hidden: Sequence[int],
        activation: str,
        init: Initializer,
    ) -> None:
        super().__init__()
        self.names = tuple(shapes)
        self.convs = nn.ModuleDict()
        size = 0
        for name, shape in shapes.items():
            if len(shape) == dims + 1:
                layers = _conv2d(shape, activation) if dims == 2 else _conv1d(shape, activation)
                initialize(layers, init)
                self.convs[module_key(name)] = layers
                size += _output_size(layers, shape)
            else:
                size += _size(shape)
        if not self.convs:
            kind = "an image [C, H, W]" if dims == 2 else "a sequence [C, L] (try env.frame_stack)"
            raise UserError(
                f"policy.torso: conv{dims}d needs an observation that is {kind}; "
                f"got {dict(shapes)}; use torso: mlp"
            )
        self.layers = dense((size, *hidden), activation)
        self.out_features = hidden[-1] if hidden else size
        initialize(self.layers, init)

    def forward(self, obs: Tensors) -> Tensor:
        """Features ``[N, out_features]``."""
        parts = []
        for name in self.names:
            key = module_key(name)
            part = self.convs[key](obs[name]) if key in self.convs else obs[name]
            parts.append(part.flatten(1))
        features: Tensor = self.layers(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
        return features


def build_torso(
    name: str,
    shapes: Shapes,
    *,
    hidden: Sequence[int],
    activation: str,
    init: Initializer,
    kwargs: Mapping[str, object],
) -> Torso:
    """The torso called ``name``: auto, mlp, conv1d, conv2d, or ``package.module:Class``."""
    if ":" in name:
        torso: Torso = load_object(name, "policy.torso")(shapes, **kwargs)
        if not hasattr(torso, "out_features"):
            raise UserError(f"policy.torso: {name} must set the attribute out_features")
        return torso
    if kwargs:
        raise UserError("policy.torso_kwargs: only a torso of your own (module:Class) takes them")
    if name == "auto":
        name = "conv2d" if any(len(shape) == 3 for shape in shapes.values()) else "mlp"
    if name == "mlp":
        return MLPTorso(shapes, hidden=hidden, activation=activation, init=init)
    if name in ("conv1d", "conv2d"):
        dims = 1 if name == "conv1d" else 2
        return ConvTorso(shapes, dims=dims, hidden=hidden, activation=activation, init=init)
    known = ("auto", "mlp", "conv1d", "conv2d")
    raise UserError(
        f"policy.torso: unknown '{name}'{near_names(name, known)} "
        f"(one of {', '.join(known)}, or package.module:Class)"
    )


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for axis in shape:
        size *= axis
    return size


def _conv2d(shape: tuple[int, ...], act: str) -> nn.Sequential:
    if min(shape[1:]) < 36:
        raise UserError(
            f"policy.torso: conv2d needs images of at least 36x36, got {shape[1]}x{shape[2]}; "
            "use torso: mlp or your own module:Class"
        )
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 8, stride=4),
        activation(act),
        nn.Conv2d(32, 64, 4, stride=2),
        activation(act),
        nn.Conv2d(64, 64, 3),
        activation(act),
    )


def _conv1d(shape: tuple[int, ...], act: str) -> nn.Sequential:
    if shape[1] < 7:
        raise UserError(
            f"policy.torso: conv1d needs at least 7 features per frame, got {shape[1]}; "
            "use torso: mlp"
        )
    return nn.Sequential(
        nn.Conv1d(shape[0], 32, 3),
        activation(act),
        nn.Conv1d(32, 32, 3),
        activation(act),
        nn.Conv1d(32, 64, 2),
        activation(act),
        nn.Conv1d(64, 64, 1),
        activation(act),
    )


def _output_size(layers: nn.Module, shape: tuple[int, ...]) -> int:
    with torch.no_grad():
        return int(layers(torch.zeros(1, *shape)).numel())
