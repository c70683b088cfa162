"""Some environments of an actor: where they are in their episodes, and what their policy remembers.

What is chosen for them, and what is written down, is a subclass's::

    out, state = lane.ask(policy, lane.look(), rng)
    lane.act(out, state)                        # the environments begin to step
    lane.receive()                              # and have stepped

Several lanes may be asked of one policy at once, and each told its rows: see
:mod:`rookery.roles.inference`.

Shapes: B environments.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rookery.core.action import to_env_units
from rookery.core.heartbeat import Heartbeat
from rookery.core.spec import Array, Arrays
from rookery.core.tensors import Tensors, as_tensor
from rookery.envs.transition import BackgroundVectorEnv, StepResult, VectorEnv
from rookery.nets.policy import Policy
from rookery.runs.checkpoint_files import State


class Ended(NamedTuple):
    """The whole episodes that ended in one step."""

    rows: Array
    """Which environments."""
    returns: Array
    """Their raw returns."""
    lengths: Array
    """Their lengths in steps."""


class Look(NamedTuple):
    """What a policy is asked about."""

    obs: Tensors
    state: Tensors
    reset: Tensor


class Lane:
    """B environments that are stepped together."""

    def __init__(
        self, envs: VectorEnv, policy: Policy, device: torch.device, heartbeat: Heartbeat
    ) -> None:
        self.envs = envs
        self.policy = policy
        self.device = device
        self.heartbeat = heartbeat
        self.obs: Arrays | None = None
        self.reset: Array = np.ones(envs.num_envs, np.bool_)
        self.state: Tensors = policy.initial_state(envs.num_envs)
        self.episode_return = np.zeros(envs.num_envs, np.float64)
        self.episode_length = np.zeros(envs.num_envs, np.int32)
        self._background = envs if isinstance(envs, BackgroundVectorEnv) else None
        self._actions: Array | None = None

    def begun(self) -> Arrays:
        """What to act on; the first call resets the environments."""
        if self.obs is None:
            with self.heartbeat.in_env():
                self.obs = self.envs.reset()
        return self.obs

    def begin_step(self, action: Array) -> None:
        """Let the environments step with what the policy chose ``[B, ...]``, where they can in the
        background."""
        self._actions = to_env_units(self.envs.action_leaf, action)
        if self._background is not None:
            with self.heartbeat.in_env():
                self._background.begin_step(self._actions)

    def finish_step(self) -> StepResult:
        """What that step did."""
        assert self._actions is not None
        with self.heartbeat.in_env():
            if self._background is not None:
                return self._background.finish_step()
            return self.envs.step(self._actions)

    def count(self, result: StepResult) -> Ended:
        """Add a step to the episodes it belongs to; those that ended begin anew."""
        self.episode_return += result.reward
        self.episode_length += result.valid
        rows = np.flatnonzero(result.episode_ended())
        ended = Ended(rows, self.episode_return[rows], self.episode_length[rows])
        self.episode_return[rows] = 0.0
        self.episode_length[rows] = 0
        return ended

    def tensors(self, arrays: Arrays) -> Tensors:
        """``arrays`` where the policy computes."""
        return {name: self.tensor(array) for name, array in arrays.items()}

    def tensor(self, array: Array) -> Tensor:
        """``array`` where the policy computes."""
        return as_tensor(array, self.device)

    def save_state(self) -> State | None:
        """Where its episodes are, or None if the environments cannot say."""
        saved = self.envs.state_dict() if self.obs is not None else None
        if saved is None or self.obs is None:
            return None
        arrays, data = saved
        out: dict[str, Any] = {f"env/{name}": array for name, array in arrays.items()}
        out |= {f"state/{name}": leaf for name, leaf in self.state.items()}
        out |= {
            "reset": self.reset,
            "episode_return": self.episode_return,
            "episode_length": self.episode_length,
        }
        return State(out, {"env": data})

    def load_state(self, saved: State) -> None:
        """Go on from :meth:`save_state`."""
        self.obs = self.envs.load_state_dict(group(saved, "env/"), saved.data["env"])
        self.state = self.tensors(group(saved, "state/"))
        self.reset = np.array(saved.arrays["reset"])
        self.episode_return = np.array(saved.arrays["episode_return"])
        self.episode_length = np.array(saved.arrays["episode_length"])
        self.lose(self.envs.lost_episodes)

    def forget(self) -> None:
        """Other environments are here than before, and nothing of them was seen yet."""
        self.obs = None
        self.state = self.policy.initial_state(self.envs.num_envs)
        self.lose(np.ones(self.envs.num_envs, np.bool_))

    def lose(self, lost: Array) -> None:
        """The episodes of rows ``lost`` ``[B]`` do not go on; others begin."""
        self.reset[lost] = True
        self.episode_return[lost] = 0.0
        self.episode_length[lost] = 0


def group(saved: State, prefix: str) -> Arrays:
    """Copies of the arrays whose names begin with ``prefix``, without it."""
    return {
        name.removeprefix(prefix): np.asarray(array).copy()
        for name, array in saved.arrays.items()
        if name.startswith(prefix)
    }
