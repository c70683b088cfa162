"""MinAtar's games (https://arxiv.org/abs/1903.03176), made to repeat and to be drawn.

They come with ``rookery[minatar]`` as ``MinAtar/Breakout-v1`` and so on: -v0 with all six actions,
-v1 with those that the game uses. Observations are bool ``[10, 10, channels]``.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

CELL_PIXELS = 16
_FPS = 15


class Game(gym.Wrapper[Any, Any, Any, Any]):
    """A game whose episodes follow from their seeds alone, and whose pictures are bytes."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.metadata = dict(env.metadata) | {"render_fps": _FPS}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with no action to stick to: MinAtar keeps that of the one before."""
        game: Any = self.env.unwrapped
        game.game.last_action = 0
        return self.env.reset(seed=seed, options=options)

    def render(self) -> Any:
        """What MinAtar draws; its floats 0..1, a pixel a cell, as bytes that can be seen."""
        drawn: Any = self.env.render()
        if self.render_mode != "rgb_array":
            return drawn
        picture: NDArray[np.uint8] = (np.asarray(drawn) * 255).round().astype(np.uint8)
        return picture.repeat(CELL_PIXELS, axis=0).repeat(CELL_PIXELS, axis=1)
