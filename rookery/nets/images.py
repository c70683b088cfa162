"""Convolutions for images ``[N, C, H, W]``, by name.

Each takes the shape ``[C, H, W]`` of an image and the activation, and gives layers whose output is
flattened by the torso.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from rookery.core.errors import UserError

Shape = tuple[int, ...]
Activation = Callable[[], nn.Module]

NATURE_PIXELS = 36
"""The least height and width that the Nature DQN's layers can see."""


def nature(shape: Shape, act: Activation) -> nn.Sequential:
    """The layers of the Nature DQN: 32@8x8/4, 64@4x4/2, 64@3x3 (Mnih et al., 2015)."""
    _at_least("conv2d", shape, NATURE_PIXELS)
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 8, stride=4),
        act(),
        nn.Conv2d(32, 64, 4, stride=2),
        act(),
        nn.Conv2d(64, 64, 3),
        act(),
    )


def small(shape: Shape, act: Activation) -> nn.Sequential:
    """16@8x8/4, 32@4x4/2: the layers of the first DQN (2013) and of A3C. A third of the work."""
    _at_least("conv2d_small", shape, 20)
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 8, stride=4),
        act(),
        nn.Conv2d(16, 32, 4, stride=2),
        act(),
    )


def grid(shape: Shape, act: Activation) -> nn.Sequential:
    """16@3x3: the layer of MinAtar's DQN, for pictures whose pixels are cells of a game."""
    _at_least("grid", shape, 3)
    return nn.Sequential(nn.Conv2d(shape[0], 16, 3), act())


def ba3c(shape: Shape, act: Activation) -> nn.Sequential:
    """The layers of batched A3C: 32@5x5, 32@5x5, 64@5x5, each halved, and 64@3x3."""
    _at_least("ba3c", shape, 8)
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 5, padding=2),
        act(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 5, padding=2),
        act(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        act(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        act(),
    )


def resnet(shape: Shape, act: Activation) -> nn.Sequential:
    """IMPALA's deep network: three sections of 16, 32 and 32 channels (Espeholt et al., 2018)."""
    _at_least("resnet", shape, 8)
    layers: list[nn.Module] = []
    channels = shape[0]
    for width in (16, 32, 32):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.MaxPool2d(3, stride=2, padding=1),
            Residual(width, act),
            Residual(width, act),
        ]
        channels = width
    return nn.Sequential(*layers, act())


class Residual(nn.Module):
    """Two convolutions, added to what came in."""

    def __init__(self, width: int, act: Activation) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            act(),
            nn.Conv2d(width, width, 3, padding=1),
            act(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, images: Tensor) -> Tensor:
        """``images`` ``[N, C, H, W]``, changed a little."""
        changed: Tensor = images + self.layers(images)
        return changed


IMAGE_LAYERS: dict[str, Callable[[Shape, Activation], nn.Sequential]] = {
    "conv2d": nature,
    "conv2d_small": small,
    "resnet": resnet,
    "ba3c": ba3c,
    "grid": grid,
}
"""Names of torsos for images."""


def _at_least(name: str, shape: Shape, pixels: int) -> None:
    if min(shape[1:]) < pixels:
        raise UserError(
            f"policy.torso: {name} needs images of at least {pixels}x{pixels}, "
            f"got {shape[1]}x{shape[2]}; use torso: mlp or your own module:Class"
        )
