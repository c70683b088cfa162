"""An actor without a network: steps its environments with the actions that it is given.

Its environments are in parts, at least two where it can be: one steps while the others wait for
their actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import BaseRole
from rookery.core.spec import Array, Arrays
from rookery.envs.transition import StepResult, VectorEnv
from rookery.roles.lane import group
from rookery.runs.checkpoint_files import State
from rookery.transport.requests import RequestClient


class ThinActor(BaseRole):
    """Parts of B environments each, and requests for what they do next."""

    def __init__(
        self, parts: Sequence[VectorEnv], requests: RequestClient, heartbeat: Heartbeat
    ) -> None:
        self.parts, self.requests, self.heartbeat = parts, requests, heartbeat
        self._restored: dict[int, Arrays] = {}
        """By part, what is seen where its episodes go on."""
        self._asks = False
        """Whether all parts have asked since it was welcome."""
        self._next = 0

    def ready(self) -> bool:
        """Whether there is somebody to greet, or an action to take."""
        requests = self.requests
        if requests.must_greet():
            return True
        return requests.welcome() if not self._asks else self._answered() is not None

    def _answered(self) -> int | None:
        """The part whose turn it is, of those that may step."""
        for turn in range(len(self.parts)):
            part = (self._next + turn) % len(self.parts)
            if self.requests.answered(part):
                return part
        return None

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.heartbeat.waiting():
            self.requests.wait(timeout_secs)

    def step(self) -> None:
        """Greet, begin, or step one part; call when :meth:`ready`."""
        if self.requests.must_greet():
            self._asks = False
            self.requests.greet()
        elif not self._asks:
            self._asks = True
            for part in range(len(self.parts)):
                self.requests.ask(part, self._first(part))
        else:
            self._step()

    def _step(self) -> None:
        part = self._answered()
        assert part is not None
        self._next = part + 1
        actions = self.requests.take(part)
        with self.heartbeat.in_env():
            result = self.parts[part].step(actions)
        self.requests.ask(part, result)

    def _first(self, part: int) -> StepResult:
        """What is seen first; ``reset``: whose episodes begin there."""
        envs = self.parts[part]
        seen, begins = self._restored.pop(part, None), envs.lost_episodes
        if seen is None:
            with self.heartbeat.in_env():
                seen = envs.reset()
            begins = np.ones(envs.num_envs, np.bool_)
        nothing = np.zeros(envs.num_envs, np.bool_)
        return StepResult(
            obs=seen,
            reward=np.zeros(envs.num_envs),
            terminated=nothing,
            truncated=nothing,
            valid=nothing,
            reset=begins,
        )

    # ---- to go on later --------------------------------------------------------------------------

    def save_episodes(self) -> State | None:
        """Where the environments are, or None if they cannot say."""
        arrays: dict[str, Array] = {}
        data: dict[str, Any] = {}
        for part, envs in enumerate(self.parts):
            saved = envs.state_dict() if self._asks else None
            if saved is None:
                return None
            arrays |= {f"{part}/{name}": array for name, array in saved[0].items()}
            data[str(part)] = saved[1]
        return State(dict(arrays), data)

    def load_episodes(self, saved: State) -> None:
        """Go on from :meth:`save_episodes`."""
        for part, envs in enumerate(self.parts):
            arrays = group(saved, f"{part}/")
            self._restored[part] = envs.load_state_dict(arrays, saved.data[str(part)])

    def close(self) -> None:
        """Close the environments."""
        for envs in self.parts:
            envs.close()
