"""Torsos: by name, of your own, those for images, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from rookery.core.errors import UserError
from rookery.core.tensors import Tensors
from rookery.nets.images import IMAGE_LAYERS
from rookery.nets.torsos import ConvTorso, MLPTorso, Shapes, build_torso
from tests.unit.net_inputs import NAMES, generator, randn


class OwnTorso(nn.Module):
    """A torso as a user writes one."""

    def __init__(self, shapes: Shapes, *, width: int) -> None:
        super().__init__()
        self.out_features = width
        self.linear = nn.Linear(shapes["obs"][0], width)

    def forward(self, obs: Tensors) -> Tensor:
        return cast(Tensor, self.linear(obs["obs"]))


class ShapelessTorso(nn.Module):
    """A torso whose author forgot out_features."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()


def torso(name: str, shapes: Shapes, **kwargs: Any) -> Any:
    return build_torso(
        name, shapes, hidden=(8, 6), activation="relu", init="orthogonal", kwargs=kwargs
    )


def features_of(torso: Any, shapes: Shapes) -> Tensor:
    obs = {name: randn(5, *shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    features = torso(obs)
    assert features.shape == (5, torso.out_features)
    return cast(Tensor, features)


@pytest.mark.parametrize(
    ("name", "shapes", "kind"),
    [
        ("mlp", {"obs": (3,)}, MLPTorso),
        ("mlp", {"obs": (2, 36, 36), "speed": (3,)}, MLPTorso),
        ("auto", {"obs": (3,), "grid": (4, 8)}, MLPTorso),
        ("auto", {"obs": (2, 36, 40), "speed": (3,)}, ConvTorso),
        ("conv2d", {"in.left": (1, 36, 36), "in.right": (3, 84, 84), "speed": (3,)}, ConvTorso),
        ("resnet", {"obs": (4, 84, 84), "speed": (3,)}, ConvTorso),
        ("ba3c", {"obs": (4, 84, 84)}, ConvTorso),
        ("conv2d_small", {"obs": (4, 20, 84)}, ConvTorso),
        ("conv1d", {"obs": (4, 7)}, ConvTorso),
        ("conv1d", {"obs": (4, 12), "image": (1, 5, 5), "speed": (3,)}, ConvTorso),
    ],
)
def test_torsos_by_name(name: str, shapes: Shapes, kind: type[nn.Module]) -> None:
    built = torso(name, shapes)
    assert type(built) is kind
    assert built.out_features == 6
    features_of(built, shapes)


@pytest.mark.parametrize("name", ["mlp", "conv2d"])
def test_every_leaf_reaches_the_features(name: str) -> None:
    shapes: Shapes = {"image": (1, 36, 36), "speed": (3,), "room": (4,)}
    torch.manual_seed(0)
    built = torso(name, shapes)
    # Of one image alone, no unit of the last convolution may be active.
    obs = {leaf: randn(8, *shape).requires_grad_() for leaf, shape in shapes.items()}
    built(obs).square().sum().backward()
    for leaf, values in obs.items():
        assert values.grad is not None, leaf
        assert values.grad.any(), leaf


def test_a_torso_without_hidden_layers_passes_everything_on() -> None:
    built = build_torso(
        "mlp", {"a": (3,), "b": (2,)}, hidden=(), activation="tanh", init="xavier", kwargs={}
    )
    out = built({"a": torch.ones(1, 3), "b": torch.zeros(1, 2)})
    assert out.tolist() == [[1, 1, 1, 0, 0]]


def test_a_torso_of_your_own() -> None:
    built = torso("tests.unit.test_torsos:OwnTorso", {"obs": (3,)}, width=11)
    assert features_of(built, {"obs": (3,)}).shape == (5, 11)


@pytest.mark.parametrize(
    ("name", "shapes", "kwargs", "said"),
    [
        ("conv3d", {"obs": (3,)}, {}, "unknown 'conv3d'; did you mean"),
        ("resnat", {"obs": (3,)}, {}, "did you mean 'resnet'"),
        (
            "vit",
            {"obs": (3,)},
            {},
            "conv2d, conv2d_small, resnet, ba3c, grid, or package.module:Class",
        ),
        ("resnet", {"obs": (3,)}, {}, "needs an observation that is an image"),
        ("ba3c", {"obs": (1, 7, 84)}, {}, "at least 8x8, got 7x84; use torso: mlp"),
        ("conv2d", {"obs": (3,)}, {}, "needs an observation that is an image"),
        ("conv1d", {"obs": (3,)}, {}, "env.frame_stack"),
        ("conv2d", {"obs": (1, 35, 84)}, {}, "at least 36x36, got 35x84; use torso: mlp"),
        ("conv1d", {"obs": (4, 6)}, {}, "at least 7 features per frame, got 6"),
        ("mlp", {"obs": (3,)}, {"width": 3}, "only a torso of your own"),
        ("no_such_module:Torso", {"obs": (3,)}, {}, "no module named 'no_such_module'"),
        ("tests.unit.test_torsos:OwnTorsi", {"obs": (3,)}, {}, "did you mean 'OwnTorso'"),
        ("tests.unit.test_torsos:ShapelessTorso", {"obs": (3,)}, {}, "must set the attribute out_"),
    ],
)
def test_torsos_that_cannot_be_are_refused(
    name: str, shapes: Shapes, kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        torso(name, shapes, **kwargs)
    assert str(caught.value).startswith("policy.torso")
    assert said in str(caught.value)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(UserError, match="unknown 'relo'; did you mean 'relu'"):
        build_torso("mlp", {"obs": (3,)}, hidden=(4,), activation="relo", init="normal", kwargs={})


def test_leaves_may_have_any_name_when_convolved() -> None:
    shapes: Shapes = dict.fromkeys(NAMES, (1, 36, 36))
    torso = ConvTorso(shapes, kind="conv2d", hidden=(8,), activation="relu", init="orthogonal")
    features = torso({name: torch.zeros(2, 1, 36, 36) for name in NAMES})
    assert features.shape == (2, 8)


@pytest.mark.parametrize("torso", list(IMAGE_LAYERS))
def test_image_torsos_give_the_same_features_in_either_layout(torso: str) -> None:
    layers = build_torso(
        torso, {"obs": (4, 84, 84)}, hidden=(16,), activation="relu", init="orthogonal", kwargs={}
    )
    images = torch.rand(3, 4, 84, 84, generator=generator())
    by_pixel = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        layers({"obs": images}), layers({"obs": by_pixel}), rtol=1e-3, atol=1e-4
    )


def test_the_image_networks_have_the_sizes_of_their_papers() -> None:
    """Nature DQN with 512 units: 1,684,128 to its last hidden layer; IMPALA's about 1 M."""

    def count(torso: str, hidden: tuple[int, ...]) -> int:
        layers = build_torso(
            torso, {"obs": (4, 84, 84)}, hidden=hidden, activation="relu", init="normal", kwargs={}
        )
        return sum(parameter.numel() for parameter in cast(nn.Module, layers).parameters())

    nature = (4 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 64 + (3136 + 1) * 512
    assert count("conv2d", (512,)) == nature == 1_684_128
    sections = ((4, 16), (16, 32), (32, 32))
    convs = sum((9 * a + 1) * b + 4 * (9 * b + 1) * b for a, b in sections)
    assert count("resnet", (256,)) == convs + (32 * 11 * 11 + 1) * 256
    ba3c = (4 * 25 + 1) * 32 + (32 * 25 + 1) * 32 + (32 * 25 + 1) * 64 + (64 * 9 + 1) * 64
    assert count("ba3c", (128,)) == ba3c + (64 * 10 * 10 + 1) * 128
