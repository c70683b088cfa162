"""The actor: steps its environments with its own copy of the policy and puts rollouts.

An actor may hold its environments in two halves. If they step in the background (``begin_step``,
``finish_step``), one half steps while the other gets its actions; the rollout is the same.

When the run is about to end, a rollout that would take long is left half made. Where the run is to
go on exactly, what is saved then is how everything was before it: see :class:`Actor`.

Shapes: T rollout steps, B environments of this actor, or of one half.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rookery.core.errors import UserError
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import BaseRole, ExperienceSink, ParamSource
from rookery.core.records import Rollout
from rookery.core.seeding import generator_state, restore_generator
from rookery.core.spec import Array, Arrays
from rookery.core.tensors import Tensors
from rookery.envs.transition import StepResult, VectorEnv
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.policy import ActionOut
from rookery.roles.lane import Ended, Lane, Look, group
from rookery.roles.policy_replica import PolicyReplica
from rookery.runs.checkpoint_files import State
from rookery.runs.tensorfile import SavedArrays

QUICK_SECS = 0.2
"""A rollout that takes less is finished, and nothing is kept for the case that it is not."""


class Actor(BaseRole):
    """B environments, whole or in two halves; one policy copy, one stream of randomness.

    A checkpoint knows nothing of rollouts that were not learned from. So where the run is to go on
    ``exactly``, what is saved is where the environments were before the first of those.
    """

    def __init__(
        self,
        *,
        envs: VectorEnv,
        second: VectorEnv | None = None,
        policy: ActorCritic,
        sink: ExperienceSink,
        params: ParamSource,
        rng: np.random.Generator,
        device: torch.device,
        heartbeat: Heartbeat | None = None,
        leaving: Callable[[], bool] | None = None,
        exactly: bool = False,
    ) -> None:
        """``leaving``: whether the run is about to end, None if that changes nothing; ``exactly``:
        whether what is saved of the episodes must fit what was learned."""
        self.policy = policy
        self.leaving = leaving or _never
        self.exactly = exactly and leaving is not None
        self.left = False
        """Whether it was told so, and acts no more."""
        self._before: State | None = None
        """Where the environments were before what was not learned from, if that was kept."""
        self._last_secs = math.inf
        self.weights = PolicyReplica(policy, params)
        self.sink = sink
        self.rng = rng
        self.heartbeat = heartbeat or Heartbeat()
        vectors = [envs] if second is None else [envs, second]
        self.halves = [EnvHalf(vector, policy, device, self.heartbeat) for vector in vectors]

    def ready(self) -> bool:
        """Whether there is room for a rollout, and weights to make it with."""
        return not self.left and self.sink.can_put() and self.weights.refresh()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.heartbeat.waiting():
            self.sink.wait(timeout_secs)

    def step(self) -> None:
        """Make one rollout under the newest weights and put it; call when :meth:`ready`.

        If the run is about to end, leave it instead.
        """
        unlearned = self.sink.unlearned()
        if not unlearned:
            self._before = None
        if self.leaving():
            self.left = True
            return
        begun = time.monotonic()
        slow = self._last_secs >= QUICK_SECS or self.sink.in_parts
        if self.exactly and slow and not unlearned:
            self._before = self._kept()
        rollout = self.sink.reserve()
        with torch.inference_mode():
            self.left = not self._act(rollout)
        if not self.left:
            self.sink.put(rollout)
        self._last_secs = time.monotonic() - begun

    def _kept(self) -> State | None:
        """A copy of where the environments are."""
        for half in self.halves:
            half.begun()
        return copy.deepcopy(self._episodes())

    def _may_leave(self) -> bool:
        """Whether a rollout may be left half made."""
        return (not self.exactly or self._before is not None) and self.leaving()

    def _act(self, rollout: Rollout) -> bool:
        """T steps of all environments, each field written where the learner will read it; whether
        they were made."""
        rollout.version.fill(self.weights.version)
        steps = rollout.action.shape[0]
        parts = self._parts(rollout)
        for half, part in parts:
            half.begin(part)
        for t in range(steps):
            for half, part in parts:
                if t > 0:
                    half.receive(part, t - 1)
                half.choose(part, t, self.rng)
            if self._may_leave():
                for half, part in parts:
                    half.receive(part, t)
                return False
        for half, part in parts:
            half.receive(part, steps - 1)
            half.end(part)
        return True

    def _parts(self, rollout: Rollout) -> list[tuple[EnvHalf, Rollout]]:
        """Each half with its columns."""
        if len(self.halves) == 1:
            return [(self.halves[0], rollout)]
        first, second = self.halves
        middle = first.envs.num_envs
        end = middle + second.envs.num_envs
        return [(first, rollout.columns(0, middle)), (second, rollout.columns(middle, end))]

    def save_episodes(self) -> State | None:
        """Everything needed to go on exactly, or None if the environments cannot say."""
        if self._before is not None and (self.left or self.sink.unlearned()):
            return self._before
        return self._episodes()

    def _episodes(self) -> State | None:
        arrays: dict[str, Any] = {}
        data: dict[str, Any] = {"rng": generator_state(self.rng)}
        for half, prefix in zip(self.halves, _PREFIXES, strict=False):
            saved = half.save_state()
            if saved is None:
                return None
            arrays |= {f"{prefix}{name}": array for name, array in saved.arrays.items()}
            data[f"{prefix}env"] = saved.data["env"]
        return State(arrays, data)

    def load_episodes(self, saved: State) -> None:
        """Go on from :meth:`save_episodes`."""
        if sum(name.endswith("env") for name in saved.data) != len(self.halves):
            raise UserError("the checkpoint was made with another number of env.halves")
        for half, prefix in zip(self.halves, _PREFIXES, strict=False):
            arrays: SavedArrays = dict(group(saved, prefix))
            half.load_state(State(arrays, {"env": saved.data[f"{prefix}env"]}))
        restore_generator(self.rng, saved.data["rng"])

    def close(self) -> None:
        """Close the environments."""
        for half in self.halves:
            half.envs.close()


def _never() -> bool:
    return False


_PREFIXES = ("", "second/")
"""Of the names under which each half is saved."""


class EnvHalf(Lane):
    """One half of an actor's environments, or all; fills rollouts.

    ::

        half.begin(rollout)
        for t in range(num_steps):
            half.choose(rollout, t, rng)    # the environments begin to step
            half.receive(rollout, t)        # and have stepped
        half.end(rollout)
    """

    def __init__(
        self,
        envs: VectorEnv,
        policy: ActorCritic,
        device: torch.device,
        heartbeat: Heartbeat,
    ) -> None:
        super().__init__(envs, policy, device, heartbeat)
        self.policy: ActorCritic = policy

    def begin(self, rollout: Rollout) -> None:
        """Write down where the rollout begins."""
        self.begun()
        for name, leaf in self.state.items():
            rollout.state[name][:] = leaf.cpu().numpy()
        rollout.episode_return.fill(np.nan)
        rollout.episode_length.fill(0)
        rollout.final_value.fill(0.0)
        for values in rollout.info.values():
            values.fill(np.nan)

    def choose(self, rollout: Rollout, t: int, rng: np.random.Generator) -> None:
        """Act on what was seen last; environments that can begin to step in the background."""
        out, state = self.policy.step(*self.look(rollout, t), rng)
        self.act(rollout, t, out, state)

    def look(self, rollout: Rollout, t: int) -> Look:
        """What was seen last, written down."""
        assert self.obs is not None
        self._store_obs(rollout, t)
        return Look(self.tensors(self.obs), self.state, self.tensor(self.reset))

    def act(self, rollout: Rollout, t: int, out: ActionOut, state: Tensors) -> None:
        """What the policy chose, written down and begun."""
        self.state = state
        action = out.action.cpu().numpy()
        rollout.action[t] = action
        rollout.log_prob[t] = out.log_prob.cpu().numpy()
        rollout.value[t] = out.value.cpu().numpy()
        self.begin_step(action)

    def receive(self, rollout: Rollout, t: int) -> None:
        """Write down what that step did."""
        result = self.finish_step()
        self._store_result(rollout, t, result)
        self.obs, self.reset = result.obs, result.reset

    def end(self, rollout: Rollout) -> None:
        """Write down what was seen last, and what it is worth."""
        assert self.obs is not None
        last = rollout.action.shape[0]
        self._store_obs(rollout, last)
        rollout.value[last] = self._values(self.obs, self.reset)

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
        ended = self.count(result)
        if result.final_obs is not None:
            self._store_ends(rollout, t, result, ended)

    def _store_ends(self, rollout: Rollout, t: int, result: StepResult, ended: Ended) -> None:
        """What only the rows need in which an episode ended."""
        rollout.episode_return[t, ended.rows] = ended.returns
        rollout.episode_length[t, ended.rows] = ended.lengths
        for name, values in result.info.items():
            rollout.info[name][t] = np.where(result.episode_ended(), values, np.nan)
        cut = np.flatnonzero(result.truncated)
        if cut.size:
            assert result.final_obs is not None
            final = {name: leaf[cut] for name, leaf in result.final_obs.items()}
            index = torch.from_numpy(cut).to(self.device)
            state = {name: leaf.index_select(0, index) for name, leaf in self.state.items()}
            rollout.final_value[t, cut] = self._values(final, np.zeros(cut.size, np.bool_), state)

    def _values(self, obs: Arrays, reset: Array, state: Tensors | None = None) -> Array:
        state = self.state if state is None else state
        value = self.policy.value(self.tensors(obs), state, self.tensor(reset))
        array: Array = value.cpu().numpy()
        return array
