"""An actor for replay: acts on its values, at random now and then, and puts steps.

Shapes: B environments of this actor, E episodes that ended.
"""

from __future__ import annotations

import logging

import numpy as np
import torch

from rookery.algos.dqn import BEST, TAKEN, DQNConfig
from rookery.core.action import to_env_units
from rookery.core.errors import UserError
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import ActorStateCell, BaseRole, ParamSource, StepSink
from rookery.core.seeding import generator_state, restore_generator
from rookery.core.spec import ACTION_MASK, Array, Arrays
from rookery.envs.transition import StepResult, VectorEnv
from rookery.nets.q_network import QNetwork, legal_values
from rookery.roles.curiosity import curiosity_of
from rookery.roles.lane import Lane, group
from rookery.roles.policy_replica import PolicyReplica
from rookery.runs.checkpoint_files import State

_LOG = logging.getLogger(__name__)
_CURIOSITY, _WEIGHTS = "curiosity/", "weights/"


class Explorer(BaseRole):
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
        heartbeat: Heartbeat | None = None,
        carried_over: ActorStateCell | None = None,
    ) -> None:
        """``carried_over`` has what the actor before knew, and is told, when episodes have ended,
        what the next one here should know."""
        self.config = config
        self.policy = policy
        self.weights = PolicyReplica(policy, params)
        self.sink = sink
        self.rng = rng
        self.streams, self.num_streams = streams, num_streams
        self.info_keys = info_keys
        self.heartbeat = heartbeat or Heartbeat()
        self.lane = Lane(envs, policy, policy.device, self.heartbeat)
        self._anew: Array | None = np.ones(len(streams), np.bool_)
        """``[B]`` whose episodes do not continue what was put before; None: all do."""
        self.curiosity = curiosity_of(config, policy, streams, rng)
        self._carried_over = carried_over if self.curiosity.carried_over() else None
        self._takes_over = True

    def ready(self) -> bool:
        """Whether replay takes more, and there are weights to act with."""
        if not (self.sink.can_put() and self.weights.refresh()):
            return False
        if self._takes_over:  # who resumes a run has put it there before the first weights
            self._take_over()
        return True

    def _take_over(self) -> None:
        """Begin with what the actor before left, if it was one like this."""
        self._takes_over = False
        left = self._carried_over.load() if self._carried_over is not None else None
        if left is None:
            return
        actor = int(self.streams[0]) // len(self.streams)
        try:
            self.take_over(left)
        except UserError as error:
            _LOG.warning(
                "actor-%d knows nothing of what the one before it learned: %s", actor, error
            )
        else:
            _LOG.info(
                "actor-%d goes on with what the one before it knew of arms and novelty", actor
            )

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        with self.heartbeat.waiting():
            self.sink.wait(timeout_secs)

    def step(self) -> None:
        """Some steps of every environment; call when :meth:`ready`."""
        with torch.inference_mode():
            for _ in range(self.config.rollout_steps):
                self._step()

    def _step(self) -> None:
        lane, steps = self.lane, self.sink.reserve()
        _fill(steps.obs, lane.begun())
        seen = steps.obs
        self.curiosity.begin(seen, lane.reset)
        _fill(steps.state, self._fresh())
        action, extra = self._choose(seen)
        with self.heartbeat.in_env():
            result = lane.envs.step(to_env_units(lane.envs.action_leaf, action))
        reward = self._reward(result.reward)
        extra |= self.curiosity.judge(action, reward, result)
        final_extra = self._final_extra(result, extra) if extra else None
        ended = lane.count(result)
        told = [ended.returns, ended.lengths]
        told += [result.info[key][ended.rows] for key in self.info_keys]
        told += self.curiosity.end(ended)
        if self._carried_over is not None and len(ended.rows):
            self._carried_over.save(self.curiosity.carried_over())
        steps.action[...], steps.reward[...] = action, reward
        steps.terminated[...], steps.truncated[...] = result.terminated, result.truncated
        assert steps.valid is not None
        steps.valid[...] = result.valid
        _fill(steps.extra, extra)
        _fill(steps.final_obs, result.final_obs)
        _fill(steps.final_extra, final_extra)
        self.sink.put(
            steps,
            np.stack(told, 1),
            ended=result.final_obs is not None,
            valued=final_extra is not None,
            anew=self._anew,
        )
        self._anew = None
        lane.obs, lane.reset = result.obs, result.reset

    def _choose(self, seen: Arrays) -> tuple[Array, Arrays]:
        """Actions ``[B]``, and what the values said of them."""
        lane, rng = self.lane, self.rng
        obs = lane.tensors(seen | self.curiosity.inputs())
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
        action = self._any_of(np.where(explore[:, None], self._legal(seen), ties))
        extra: Arrays = {}
        if self.config.actor_priorities:
            taken = values.gather(-1, lane.tensor(action)[:, None]).squeeze(-1)
            extra = {TAKEN: taken.cpu().numpy(), BEST: best[:, 0].cpu().numpy()}
        return action, extra

    def _legal(self, seen: Arrays) -> Array:
        """``[B, A]`` which actions may be taken."""
        mask = seen.get(ACTION_MASK)
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

    def _fresh(self) -> Arrays:
        """The state to act with: zeros where an episode begins."""
        begins = self.lane.reset
        return {
            name: np.where(begins.reshape(-1, *[1] * (leaf.ndim - 1)), 0, leaf.cpu().numpy())
            for name, leaf in self.lane.state.items()
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

    def save_episodes(self) -> State | None:
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

    def take_over(self, left: Arrays) -> None:
        """Begin new episodes with what the actor before knew; an error if it was another kind."""
        for name, mine in self.curiosity.carried_over().items():
            if name not in left or left[name].shape != mine.shape:
                raise UserError("it had other settings of exploring, or other environments")
        self.curiosity.take_over(left)

    def load_episodes(self, saved: State) -> None:
        """Go on from :meth:`save_episodes`."""
        self.lane.load_state(saved)
        self._anew, self._takes_over = self.lane.envs.lost_episodes.copy(), False
        self.curiosity.load(group(saved, _CURIOSITY))
        if "version" in saved.data:
            self.weights.load(group(saved, _WEIGHTS), saved.data["version"])
        restore_generator(self.rng, saved.data["rng"])

    def close(self) -> None:
        """Close the environments."""
        self.lane.envs.close()


def carried_over_in(saved: State) -> Arrays:
    """What :meth:`Explorer.take_over` takes, out of :meth:`Explorer.save_episodes`."""
    return group(saved, _CURIOSITY)


def _fill(into: Arrays | None, leaves: Arrays | None) -> None:
    for name, leaf in (leaves or {}).items():
        assert into is not None
        into[name][...] = leaf
