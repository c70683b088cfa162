"""What BipedalWalkerHardcore's learner is told beside the score.

Shapes: T steps, B environments.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.floating]

FALL = -10.0
"""What a fall costs, instead of 100."""
SURE_FALL = -250.0
"""What it costs a walker that gets over most obstacles."""
TIME = 0.03
"""What every step costs."""


def pressing_on(reward: FloatArray, obs: Mapping[str, FloatArray]) -> FloatArray:
    """Rewards under which it does not pay to wait before an obstacle.

    A fall's 100 is more than the way behind the next stump is worth to a walker that mostly
    stumbles over it; standing still costs nothing, and so it stops there for good. For
    ``ppo.shape_reward``: ``reward`` [T, B].
    """
    shaped: FloatArray = np.maximum(reward, FALL) - TIME
    return shaped


def sure_footed(reward: FloatArray, obs: Mapping[str, FloatArray]) -> FloatArray:
    """Rewards for a walker that has learned by :func:`pressing_on`: not to fall is all that counts.

    It no longer waits before obstacles. But whoever discounts the future hurries, and falls for it,
    while the score knows no time; so a fall costs more than it does there. ``reward`` [T, B].
    """
    shaped: FloatArray = np.where(reward <= -100.0, SURE_FALL, reward)
    return shaped
