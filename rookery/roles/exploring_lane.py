"""Some environments that are explored: acted on by values, at random now and then; steps are put.

Shapes: B environments, E whole episodes that ended, A actions.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
from torch import Tensor

from rookery.algos.dqn import BEST, TAKEN, DQNConfig
from rookery.core.errors import UserError
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import ActorStateCell, StepSink
from rookery.core.seeding import generator_state, restore_generator
from rookery.core.sequence import Steps
from rookery.core.spec import ACTION_MASK, Array, Arrays
from rookery.core.tensors import Tensors
from rookery.envs.transition import StepResult, VectorEnv
from rookery.nets.heads import Noise
from rookery.nets.q_network import QNetwork, legal_values
from rookery.roles.curiosity import curiosity_of
from rookery.roles.lane import Lane, Look, group
from rookery.runs.checkpoint_files import State

_LOG = logging.getLogger(__name__)
_CURIOSITY = "curiosity/"


class Chosen(NamedTuple):
    """A step that was begun."""

    steps: Steps
    action: Array
    extra: Arrays


class ExploringLane(Lane):
    """B environments, one stream of randomness, what is curious about them, and where steps go."""

    policy: QNetwork

    def __init__(
        self,
        *,
        name: str,
        config: DQNConfig,
        envs: VectorEnv,
        policy: QNetwork,
        sink: StepSink,
        rng: np.random.Generator,
        streams: Array,
        num_streams: int,
        info_keys: tuple[str, ...] = (),
        heartbeat: Heartbeat | None = None,
        carried_over: ActorStateCell | None = None,
    ) -> None:
        """``name`` is the actor's; ``carried_over`` has what the one before it knew, and is told,
        when episodes have ended, what the next one should know."""
        super().__init__(envs, policy, policy.device, heartbeat or Heartbeat())
        self.name, self.config, self.sink = name, config, sink
        self.streams, self.num_streams = streams, num_streams
        self.info_keys = info_keys
        self._begin_anew(rng)
        self._carried_over = carried_over if self.curiosity.carried_over() else None

    def _begin_anew(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._anew: Array | None = np.ones(len(self.streams), np.bool_)
        """``[B]`` whose episodes do not continue what was put before; None: all do."""
        self.curiosity = curiosity_of(self.config, self.policy, self.streams, rng)
        self._takes_over = True
        self._left = 0
        """Steps until it looks again whether replay takes more."""
        self._chosen: Chosen | None = None

    def begin_anew(self, rng: np.random.Generator) -> None:
        """Other environments are here: what is known beside their episodes is taken over."""
        self.forget()
        self._begin_anew(rng)

    def lose(self, lost: Array) -> None:
        """The episodes of rows ``lost`` do not go on, neither here nor in replay."""
        super().lose(lost)
        self._anew = lost.copy()

    def has_room(self) -> bool:
        """Whether replay takes the steps between two looks."""
        return self._left > 0 or self.sink.can_put()

    def looks(self) -> bool:
        """Whether it is time for the newest weights."""
        return self._left == 0

    def midway(self) -> bool:
        """Whether it is between two looks."""
        return self._left > 0

    def take_over(self) -> None:
        """Begin with what the actor before left, if it was one like this; once."""
        if not self._takes_over:
            return
        self._takes_over = False
        left = self._carried_over.load() if self._carried_over is not None else None
        if left is None:
            return
        try:
            for name, mine in self.curiosity.carried_over().items():
                if name not in left or left[name].shape != mine.shape:
                    raise UserError("it had other settings of exploring, or other environments")
            self.curiosity.take_over(left)
        except UserError as error:
            _LOG.warning("%s knows nothing of what the one before it learned: %s", self.name, error)
        else:
            _LOG.info("%s goes on with what the one before it knew of arms and novelty", self.name)

    # ---- a step ----------------------------------------------------------------------------------

    def look(self) -> Look:
        """What is acted on, written into the next slot."""
        if self._left == 0:
            self._left = self.config.rollout_steps
        self._steps = steps = self.sink.reserve()
        _fill(steps.obs, self.begun())
        self.curiosity.begin(steps.obs, self.reset)
        _fill(steps.state, self._fresh())
        self._obs = self.tensors(steps.obs | self.curiosity.inputs())
        return Look(self._obs, self.state, self.tensor(self.reset))

    @staticmethod
    def ask(policy: QNetwork, look: Look, noise: Noise) -> tuple[tuple[Tensor, ...], Tensors]:
        """``[B, A]`` the values of all actions; chance comes later."""
        values, state = policy.values(*look)
        return (values,), state

    def act(self, out: tuple[Tensor, ...], state: Tensors) -> None:
        """Choose by the values, or at random; the environments begin to step."""
        self.state = state
        values = legal_values(out[0], self._obs)
        best = values.amax(-1, keepdim=True)
        epsilon = self.curiosity.epsilon()
        if epsilon is None:
            steps = self.sink.total_steps()
            epsilon = self.config.epsilon.at(steps, self.streams, self.num_streams)
        explore = self.rng.random(len(values)) < epsilon
        # Values may be alike: all are 0 where a network begins so and nothing was found yet.
        ties = (values == best).cpu().numpy()
        action = self._any_of(np.where(explore[:, None], self._legal(self._steps.obs), ties))
        extra: Arrays = {}
        if self.config.actor_priorities:
            taken = values.gather(-1, self.tensor(action)[:, None]).squeeze(-1)
            extra = {TAKEN: taken.cpu().numpy(), BEST: best[:, 0].cpu().numpy()}
        self._chosen = Chosen(self._steps, action, extra)
        self.begin_step(action)

    def receive(self) -> None:
        """Put the step that was begun, with what it did."""
        assert self._chosen is not None
        steps, action, extra = self._chosen
        result = self.finish_step()
        reward = self._reward(result.reward)
        extra |= self.curiosity.judge(action, reward, result)
        final_extra = self._final_extra(result, extra) if extra else None
        ended = self.count(result)
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
        self._anew, self._chosen = None, None
        self._left -= 1
        self.obs, self.reset = result.obs, result.reset

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
        begins = self.reset
        return {
            name: np.where(begins.reshape(-1, *[1] * (leaf.ndim - 1)), 0, leaf.cpu().numpy())
            for name, leaf in self.state.items()
        }

    def _final_extra(self, result: StepResult, extra: Arrays) -> Arrays | None:
        """What belongs to the last observations of episodes: the values of those that were cut."""
        cut = np.flatnonzero(result.truncated)
        if result.final_obs is None or not cut.size:
            return None
        inputs = self.curiosity.inputs()
        out = {name: np.zeros_like(leaf) for name, leaf in extra.items()} | inputs
        if TAKEN not in extra:
            return out
        last = result.final_obs | inputs
        final = self.tensors({name: leaf[cut] for name, leaf in last.items()})
        index = self.tensor(cut)
        state = {name: leaf.index_select(0, index) for name, leaf in self.state.items()}
        values, _ = self.policy.values(final, state, self.tensor(np.zeros(cut.size, np.bool_)))
        out[BEST][cut] = legal_values(values, final).amax(-1).cpu().numpy()
        return out

    # ---- to go on later --------------------------------------------------------------------------

    def save_state(self) -> State | None:
        """Everything needed to go on exactly here, or None if the environments cannot say."""
        saved = super().save_state()
        if saved is None:
            return None
        arrays = {f"{_CURIOSITY}{name}": leaf for name, leaf in self.curiosity.save().items()}
        data = saved.data | {"rng": generator_state(self.rng)}
        return State({**saved.arrays, **arrays}, data)

    def load_state(self, saved: State) -> None:
        """Go on from :meth:`save_state`."""
        super().load_state(saved)
        self._anew, self._takes_over = self.envs.lost_episodes.copy(), False
        self.curiosity.load(carried_over_in(saved))
        restore_generator(self.rng, saved.data["rng"])


def carried_over_in(saved: State) -> Arrays:
    """What a curiosity takes over, out of :meth:`ExploringLane.save_state`."""
    return group(saved, _CURIOSITY)


def _fill(into: Arrays | None, leaves: Arrays | None) -> None:
    for name, leaf in (leaves or {}).items():
        assert into is not None
        into[name][...] = leaf
