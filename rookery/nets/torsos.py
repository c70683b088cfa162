"""Torsos: encoded observations ``[N, ...]`` to features ``[N, out_features]``.

Bring your own by ``policy.torso: package.module:Class``. It is called as
``Class(shapes, **policy.torso_kwargs)`` with the shape of each encoded leaf, must set
``out_features``, and ``forward`` gets a mapping of leaves ``[N, *shape]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from rookery.core.errors import UserError, near_names
from rookery.core.names import load_object
from rookery.core.tensors import Tensors
from rookery.nets.encoder import module_key
from rookery.nets.images import IMAGE_LAYERS, NATURE_PIXELS
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


def activation_layer(name: str) -> nn.Module:
    """An activation by name."""
    if name not in ACTIVATIONS:
        raise UserError(f"policy.activation: unknown '{name}'{near_names(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]()


def dense(sizes: Sequence[int], act: str) -> nn.Sequential:
    """Linear layers through ``sizes``, each followed by the activation."""
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), activation_layer(act)]
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

    ``kind`` names the layers: those for images ``[C, H, W]`` (:mod:`rookery.nets.images`), or
    ``conv1d`` for sequences ``[C, L]`` (such as stacked feature vectors).
    """

    def __init__(
        self,
        shapes: Shapes,
        *,
        kind: str,
        hidden: Sequence[int],
        activation: str,
        init: Initializer,
    ) -> None:
        super().__init__()
        self.names = tuple(shapes)
        self.convs = nn.ModuleDict()
        build = _conv1d if kind == "conv1d" else IMAGE_LAYERS[kind]
        axes = 2 if kind == "conv1d" else 3
        size = 0
        for name, shape in shapes.items():
            if len(shape) == axes:
                layers = build(shape, partial(activation_layer, activation))
                initialize(layers, init)
                self.convs[module_key(name)] = layers
                size += _output_size(layers, shape)
            else:
                size += _size(shape)
        if not self.convs:
            what = "an image [C, H, W]" if axes == 3 else "a sequence [C, L] (try env.frame_stack)"
            raise UserError(
                f"policy.torso: {kind} needs an observation that is {what}; "
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
    """The torso called ``name``: one of ours, or ``package.module:Class``."""
    if ":" in name:
        torso: Torso = load_object(name, "policy.torso")(shapes, **kwargs)
        if not hasattr(torso, "out_features"):
            raise UserError(f"policy.torso: {name} must set the attribute out_features")
        return torso
    if kwargs:
        raise UserError("policy.torso_kwargs: only a torso of your own (module:Class) takes them")
    if name == "auto":
        name = _usual_torso(shapes)
    if name == "mlp":
        return MLPTorso(shapes, hidden=hidden, activation=activation, init=init)
    if name == "conv1d" or name in IMAGE_LAYERS:
        return ConvTorso(shapes, kind=name, hidden=hidden, activation=activation, init=init)
    known = ("auto", "mlp", "conv1d", *IMAGE_LAYERS)
    raise UserError(
        f"policy.torso: unknown '{name}'{near_names(name, known)} "
        f"(one of {', '.join(known)}, or package.module:Class)"
    )


def _usual_torso(shapes: Shapes) -> str:
    """conv2d for images, grid for those that are too small for it, else mlp."""
    images = [shape for shape in shapes.values() if len(shape) == 3]
    if not images:
        return "mlp"
    least = min(min(shape[1:]) for shape in images)
    return "conv2d" if least >= NATURE_PIXELS else "grid" if least >= 3 else "mlp"


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for axis in shape:
        size *= axis
    return size


def _conv1d(shape: tuple[int, ...], act: Callable[[], nn.Module]) -> nn.Sequential:
    if shape[1] < 7:
        raise UserError(
            f"policy.torso: conv1d needs at least 7 features per frame, got {shape[1]}; "
            "use torso: mlp"
        )
    return nn.Sequential(
        nn.Conv1d(shape[0], 32, 3),
        act(),
        nn.Conv1d(32, 32, 3),
        act(),
        nn.Conv1d(32, 64, 2),
        act(),
        nn.Conv1d(64, 64, 1),
        act(),
    )


def _output_size(layers: nn.Module, shape: tuple[int, ...]) -> int:
    with torch.no_grad():
        return int(layers(torch.zeros(1, *shape)).numel())
