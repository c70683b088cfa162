"""CartPole that sends its own process a signal at a chosen step."""

from __future__ import annotations

import signal
from typing import Any

import gymnasium as gym

due: list[int] = []
"""Steps, of all environments of this process, until the signal; empty: none comes."""


class Signalling(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        if due:
            due[0] -= 1
            if not due[0]:
                due.clear()
                signal.raise_signal(signal.SIGTERM)
        return self.env.step(action)


def make() -> Any:
    return Signalling(gym.make("CartPole-v1"))
