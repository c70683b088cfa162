"""The actor: steps its environments with its own copy of the policy and puts rollouts.

The engine's loop::

    while running:
        if actor.ready():
            actor.step()
        else:
            actor.wait(timeout_secs)

Shapes: T rollout steps, B environments of this actor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rookery.core.action import to_env_units
from rookery.core.ports import ExperienceSink, ParamSource
from rookery.core.records import Rollout
from rookery.core.seeding import generator_state, restore_generator
from rookery.core.spec import Array, Arrays
from rookery.core.tensors import Tensors
from rookery.envs.transition import StepResult, VectorEnv
from rookery.nets.actor_critic import ActorCritic
from rookery.params.flat import FlatParams
from rookery.roles.pulse import Pulse
from rookery.runs.checkpoint import State


class Actor:
    """B environments, one policy copy, one stream of randomness."""

    def __init__(
        self,
        *,
        envs: VectorEnv,
        policy: ActorCritic,
        sink: ExperienceSink,
        params: ParamSource,
        rng: np.random.Generator,
        device: torch.device,
        pulse: Pulse | None = None,
    ) -> None:
        self.envs = envs
        self.policy = policy
        self.flat = FlatParams(policy)
        self.sink = sink
        self.params = params
        self.rng = rng
        self.device = device
        self.pulse = pulse or Pulse()
        self.version = -1
        self.obs: Arrays | None = None
        self.reset: Array = np.ones(envs.num_envs, np.bool_)
        self.state: Tensors = policy.initial_state(envs.num_envs)
        self.episode_return = np.zeros(envs.num_envs, np.float64)
        self.episode_length = np.zeros(envs.num_envs, np.int32)

    def ready(self) -> bool:
        """Whether there is room for a rollout, and weights to make it with."""
        return self.sink.can_put() and self._refresh()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.pulse.waiting():
            self.sink.wait(timeout_secs)

    def step(self) -> None:
        """Make one rollout under the newest weights and put it; call when :meth:`ready`."""
        rollout = self.sink.reserve()
        with torch.inference_mode():
            self._act(rollout)
        self.sink.put(rollout)

    def _refresh(self) -> bool:
        """Take over newer weights, if there are any; whether there are weights at all."""
        found = self.params.get(newer_than=self.version)
        if found is not None:
            self.version, params = found
            self.flat.load(params)
            self.policy.refreshed()
        return self.version >= 0

    def _act(self, rollout: Rollout) -> None:
        """T steps of all environments, each field written where the learner will read it."""
        if self.obs is None:
            with self.pulse.in_env():
                self.obs = self.envs.reset()
        for name, leaf in self.state.items():
            rollout.state[name][:] = leaf.cpu().numpy()
        rollout.episode_return.fill(np.nan)
        rollout.episode_length.fill(0)
        rollout.final_value.fill(0.0)
        for values in rollout.info.values():
            values.fill(np.nan)
        for t in range(rollout.action.shape[0]):
            self._store_obs(rollout, t)
            out, self.state = self.policy.step(
                self._tensors(self.obs), self.state, self._tensor(self.reset), self.rng
            )
            action = out.action.cpu().numpy()
            rollout.action[t] = action
            rollout.log_prob[t] = out.log_prob.cpu().numpy()
            rollout.value[t] = out.value.cpu().numpy()
            with self.pulse.in_env():
                result = self.envs.step(to_env_units(self.envs.action_leaf, action))
            self._store_result(rollout, t, result)
            self.obs, self.reset = result.obs, result.reset
        steps = rollout.action.shape[0]
        self._store_obs(rollout, steps)
        rollout.value[steps] = self._values(self.obs, self.reset)

    def _store_obs(self, rollout: Rollout, t: int) -> None:
        assert self.obs is not None
        for name, leaf in self.obs.items():
            rollout.obs[name][t] = leaf
        rollout.reset[t] = self.reset

    def _store_result(self, rollout: Rollout, t: int, result: StepResult) -> None:
        rollout.reward[t] = result.reward
        rollout.terminated[t] = result.terminated
        rollout.truncated[t] = result.truncated
        rollout.mask[t] = result.valid
        self.episode_return += result.reward
        self.episode_length += result.valid
        if result.final_obs is not None:
            self._store_ends(rollout, t, result)

    def _store_ends(self, rollout: Rollout, t: int, result: StepResult) -> None:
        """What only the rows need in which an episode ended."""
        ended = result.terminated | result.truncated
        rollout.episode_return[t, ended] = self.episode_return[ended]
        rollout.episode_length[t, ended] = self.episode_length[ended]
        self.episode_return[ended] = 0.0
        self.episode_length[ended] = 0
        for name, values in result.info.items():
            rollout.info[name][t] = np.where(ended, values, np.nan)
        cut = np.flatnonzero(result.truncated)
        if cut.size:
            assert result.final_obs is not None
            final = {name: leaf[cut] for name, leaf in result.final_obs.items()}
            index = torch.from_numpy(cut).to(self.device)
            state = {name: leaf.index_select(0, index) for name, leaf in self.state.items()}
            rollout.final_value[t, cut] = self._values(final, np.zeros(cut.size, np.bool_), state)

    def _values(self, obs: Arrays, reset: Array, state: Tensors | None = None) -> Array:
        state = self.state if state is None else state
        value = self.policy.value(self._tensors(obs), state, self._tensor(reset))
        array: Array = value.cpu().numpy()
        return array

    def _tensors(self, arrays: Arrays) -> Tensors:
        return {name: self._tensor(array) for name, array in arrays.items()}

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def save_state(self) -> State | None:
        """Everything needed to go on exactly here, or None if the environments cannot say."""
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
        return State(out, {"env": data, "rng": generator_state(self.rng)})

    def load_state(self, saved: State) -> None:
        """Go on from :meth:`save_state`."""

        def group(prefix: str) -> Arrays:
            return {
                name.removeprefix(prefix): np.asarray(array).copy()
                for name, array in saved.arrays.items()
                if name.startswith(prefix)
            }

        self.obs = self.envs.load_state_dict(group("env/"), saved.data["env"])
        self.state = self._tensors(group("state/"))
        self.reset = np.array(saved.arrays["reset"])
        self.episode_return = np.array(saved.arrays["episode_return"])
        self.episode_length = np.array(saved.arrays["episode_length"])
        restore_generator(self.rng, saved.data["rng"])
        lost = self.envs.lost_episodes
        self.reset[lost] = True
        self.episode_return[lost] = 0.0
        self.episode_length[lost] = 0

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
