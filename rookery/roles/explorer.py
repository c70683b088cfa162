"""The actor of formation ``replay``: acts on its values, at random now and then, and puts steps.

The engine's loop is that of :class:`~rookery.roles.actor.Actor`.

Shapes: B environments of this actor, E episodes that ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from rookery.algos.dqn import BEST, TAKEN, DQNConfig
from rookery.core.action import to_env_units
from rookery.core.errors import UserError
from rookery.core.ports import ParamSource
from rookery.core.seeding import generator_state, restore_generator
from rookery.core.sequence import Steps
from rookery.core.spec import ACTION_MASK, Array, Arrays
from rookery.envs.transition import StepResult, VectorEnv
from rookery.nets.q_network import QNetwork, legal_values
from rookery.roles.curiosity import curiosity_of
from rookery.roles.followed import Followed
from rookery.roles.lane import Lane, group
from rookery.roles.pulse import Pulse
from rookery.runs.checkpoint_files import State

_CURIOSITY, _WEIGHTS = "curiosity/", "weights/"


class StepSink(Protocol):
    """Where an actor puts its steps."""

    def can_put(self) -> bool:
        """Whether there is room for what :meth:`Explorer.step` makes."""
        ...

    def put(self, steps: Steps, episodes: Array) -> None:
        """Add one step of each environment, and ``[E, ...]`` what ended episodes told."""
        ...

    def total_steps(self) -> int:
        """Steps of all actors so far."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until there may be room, at most ``timeout_secs``."""
        ...


class Explorer:
    """B environments, one copy of the network, one stream of randomness."""

    def __init__(
        self,
        *,
        config: DQNConfig,
        envs: VectorEnv,
        policy: QNetwork,
        sink: StepSink,
        params: ParamSource,
        rng: np.random.Generator,
        streams: Array,
        num_streams: int,
        info_keys: tuple[str, ...] = (),
        pulse: Pulse | None = None,
        leave: Callable[[Arrays], None] | None = None,
    ) -> None:
        """``leave`` is told, when episodes have ended, what the next actor here should know."""
        self.config = config
        self.policy = policy
        self.weights = Followed(policy, params)
        self.sink = sink
        self.rng = rng
        self.streams, self.num_streams = streams, num_streams
        self.info_keys = info_keys
        self.pulse = pulse or Pulse()
        self.lane = Lane(envs, policy, policy.device, self.pulse)
        self._seen: Arrays = {}
        self._begun_anew = np.ones(len(streams), np.bool_)
        self.curiosity = curiosity_of(config, policy, streams, rng)
        self._leave = leave

    def ready(self) -> bool:
        """Whether replay takes more, and there are weights to act with."""
        return self.sink.can_put() and self.weights.refresh()

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.pulse.waiting():
            self.sink.wait(timeout_secs)

    def step(self) -> None:
        """Some steps of every environment; call when :meth:`ready`."""
        with torch.inference_mode():
            for _ in range(self.config.rollout_steps):
                self._step()

    def _step(self) -> None:
        lane = self.lane
        # What was seen must outlast the step, and environments may reuse their arrays.
        self._seen = {name: leaf.copy() for name, leaf in lane.begun().items()}
        self.curiosity.begin(self._seen, lane.reset)
        state = {name: leaf.cpu().numpy() for name, leaf in lane.state.items()}
        action, extra = self._choose()
        with self.pulse.in_env():
            result = lane.envs.step(to_env_units(lane.envs.action_leaf, action))
        reward = self._reward(result.reward)
        extra |= self.curiosity.judge(action, reward, result)
        final_extra = self._final_extra(result, extra) if extra else None
        ended = lane.count(result)
        told = [ended.returns, ended.lengths]
        told += [result.info[key][ended.rows] for key in self.info_keys]
        told += self.curiosity.end(ended)
        if self._leave is not None and len(ended.rows):
            self._leave(self.bequest())
        steps = Steps(
            stream=self.streams,
            obs=self._seen,
            action=action,
            reward=reward,
            terminated=result.terminated,
            truncated=result.truncated,
            final_obs=result.final_obs,
            valid=result.valid,
            state=self._fresh(state),
            extra=extra,
            final_extra=final_extra,
        )
        self.sink.put(steps, np.stack(told, 1))
        lane.obs, lane.reset = result.obs, result.reset

    def _choose(self) -> tuple[Array, Arrays]:
        """Actions ``[B]``, and what the values said of them."""
        lane, rng = self.lane, self.rng
        obs = lane.tensors(self._seen | self.curiosity.inputs())
        values, lane.state = self.policy.values(obs, lane.state, lane.tensor(lane.reset))
        values = legal_values(values, obs)
        best = values.amax(-1, keepdim=True)
        epsilon = self.curiosity.epsilon()
        if epsilon is None:
            steps = self.sink.total_steps()
            epsilon = self.config.epsilon.at(steps, self.streams, self.num_streams)
        explore = rng.random(len(values)) < epsilon
        # Values may be alike: all are 0 where a network begins so and nothing was found yet.
        ties = (values == best).cpu().numpy()
        action = self._any_of(np.where(explore[:, None], self._legal(), ties))
        extra: Arrays = {}
        if self.config.actor_priorities:
            taken = values.gather(-1, lane.tensor(action)[:, None]).squeeze(-1)
            extra = {TAKEN: taken.cpu().numpy(), BEST: best[:, 0].cpu().numpy()}
        return action, extra

    def _legal(self) -> Array:
        """``[B, A]`` which actions may be taken."""
        mask = self._seen.get(ACTION_MASK)
        if mask is None:
            return np.ones((len(self.streams), self.policy.num_actions), np.bool_)
        return mask.astype(np.bool_)

    def _any_of(self, actions: Array) -> Array:
        """``[B]`` one of those in each row of ``actions`` ``[B, A]``; one draw a row."""
        rank = np.cumsum(actions, -1)
        wanted = np.floor(self.rng.random(len(actions)) * rank[:, -1])
        found: Array = np.argmax(rank > wanted[:, None], -1)
        return found

    def _reward(self, reward: Array) -> Array:
        """What is learned from."""
        config = self.config
        if config.reward_min is not None or config.reward_max is not None:
            reward = np.clip(reward, config.reward_min, config.reward_max)
        return np.asarray(reward * config.reward_scale, np.float32)

    def _fresh(self, state: Arrays) -> Arrays:
        """The state acted with: zeros where an episode began."""
        begins = self.lane.reset
        return {
            name: np.where(begins.reshape(-1, *[1] * (leaf.ndim - 1)), 0, leaf)
            for name, leaf in state.items()
        }

    def _final_extra(self, result: StepResult, extra: Arrays) -> Arrays | None:
        """What belongs to the last observations of episodes: the values of those that were cut."""
        cut = np.flatnonzero(result.truncated)
        if result.final_obs is None or not cut.size:
            return None
        lane, inputs = self.lane, self.curiosity.inputs()
        out = {name: np.zeros_like(leaf) for name, leaf in extra.items()} | inputs
        if TAKEN not in extra:
            return out
        last = result.final_obs | inputs
        final = lane.tensors({name: leaf[cut] for name, leaf in last.items()})
        index = lane.tensor(cut)
        state = {name: leaf.index_select(0, index) for name, leaf in lane.state.items()}
        values, _ = self.policy.values(final, state, lane.tensor(np.zeros(cut.size, np.bool_)))
        out[BEST][cut] = legal_values(values, final).amax(-1).cpu().numpy()
        return out

    def save_state(self) -> State | None:
        """Everything needed to go on exactly here, or None if the environments cannot say."""
        saved = self.lane.save_state()
        if saved is None:
            return None
        arrays = {f"{_CURIOSITY}{name}": leaf for name, leaf in self.curiosity.save().items()}
        data = saved.data | {"rng": generator_state(self.rng)}
        if self.config.publish_every > 1:  # the learner's may be newer
            data["version"] = self.weights.version
            mine = self.weights.save().items()
            arrays |= {f"{_WEIGHTS}{name}": leaf for name, leaf in mine}
        return State({**saved.arrays, **arrays}, data)

    def bequest(self) -> Arrays:
        """What whoever takes this actor's place should know."""
        return self.curiosity.bequest()

    def inherit(self, bequest: Arrays) -> None:
        """Begin new episodes with what the actor before knew; an error if it was another kind."""
        for name, mine in self.bequest().items():
            if name not in bequest or bequest[name].shape != mine.shape:
                raise UserError("it had other settings of exploring, or other environments")
        self.curiosity.inherit(bequest)

    def begun_anew(self) -> Array:
        """Streams whose episodes are new: all, unless a state was loaded that could repeat them."""
        return self.streams[self._begun_anew]

    def load_state(self, saved: State) -> None:
        """Go on from :meth:`save_state`."""
        self.lane.load_state(saved)
        self._begun_anew = self.lane.envs.lost_episodes.copy()
        self.curiosity.load(group(saved, _CURIOSITY))
        if "version" in saved.data:
            self.weights.load(group(saved, _WEIGHTS), saved.data["version"])
        restore_generator(self.rng, saved.data["rng"])

    def close(self) -> None:
        """Close the environments."""
        self.lane.envs.close()


def bequest_in(saved: State) -> Arrays:
    """What :meth:`Explorer.inherit` takes, out of :meth:`Explorer.save_state`; empty if nothing."""
    return group(saved, _CURIOSITY)
