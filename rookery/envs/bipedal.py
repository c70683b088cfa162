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
SURE_FALL = -30.0
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
    """The same for a walker that has learned by :func:`pressing_on`: a fall costs more.

    It no longer waits, so what is left to learn is not to fall. ``reward`` [T, B].
    """
    shaped: FloatArray = np.maximum(reward, SURE_FALL) - TIME
    return shaped
