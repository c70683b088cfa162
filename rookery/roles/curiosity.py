"""What makes an actor explore beside chance: nothing, or the bonus and the family of NGU.

An actor's step::

    curiosity.begin(seen, reset)                   # before acting
    values = policy.values(seen | curiosity.inputs(), ...)
    result = envs.step(...)
    extra |= curiosity.judge(action, reward, result)    # what is stored with the step
    told += curiosity.end(ended)                   # where whole episodes ended

Shapes: B environments, E whole episodes that ended.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rookery.algos.dqn import DQNConfig
from rookery.algos.family import Exploring
from rookery.algos.ngu import BONUS
from rookery.core.spec import Array, Arrays, under
from rookery.core.tensors import Tensors, as_tensor
from rookery.envs.transition import StepResult
from rookery.nets.curious import CuriousQNetwork
from rookery.nets.q_network import ARM, LAST
from rookery.ops.intrinsic import RunningMoments, intrinsic_rewards, update_moments
from rookery.roles.arms import Arms
from rookery.roles.episodic_memory import EpisodicMemory
from rookery.roles.lane import Ended


class Indifference:
    """Nothing is new, and there is one policy."""

    def begin(self, seen: Arrays, reset: Array) -> None:
        """``seen`` is acted on next; ``reset`` ``[B]`` says where it begins an episode."""

    def inputs(self) -> Arrays:
        """Leaves ``[B]`` that the network takes beside what was seen."""
        return {}

    def epsilon(self) -> Array | None:
        """``[B]`` shares of random actions, None if others say."""
        return None

    def judge(self, action: Array, reward: Array, result: StepResult) -> Arrays:
        """Leaves ``[B]`` to store with a step; :meth:`inputs` are now those of what it led to."""
        return {}

    def end(self, ended: Ended) -> list[Array]:
        """Columns ``[E]`` to tell of whole episodes that ended."""
        return []

    def save(self) -> Arrays:
        """Arrays that :meth:`load` goes on from."""
        return {}

    def load(self, arrays: Arrays) -> None:
        """Go on from :meth:`save`."""

    def carried_over(self) -> Arrays:
        """What whoever takes this actor's place should know: some of :meth:`save`, always of the
        same shapes."""
        return {}

    def take_over(self, arrays: Arrays) -> None:
        """Go on from :meth:`carried_over`, in new episodes."""


class Curiosity(Indifference):
    """The bonus of each step, and the arm of each episode.

    Memories follow the episodes of the learner: where a lost life ends one, the next begins with an
    empty memory. Arms follow whole games.
    """

    def __init__(
        self, config: Exploring, policy: CuriousQNetwork, streams: Array, rng: np.random.Generator
    ) -> None:
        self.config, self.policy = config.novelty, policy
        self.arms = Arms(config.family, streams, rng)
        self.memory: EpisodicMemory | None = None
        if self.config.episodic:
            self.memory = EpisodicMemory(self.config, len(streams), policy.device)
        zero = torch.zeros((), dtype=torch.float64, device=policy.device)
        self.moments = RunningMoments(zero, zero, zero)
        """Of the predictor's error at all that was seen."""
        self.last = np.zeros((len(streams), 3), np.float32)
        """``[B, 3]``: see :data:`~rookery.nets.q_network.LAST`."""
        self.bonus_return = np.zeros(len(streams))
        """``[B]`` intrinsic reward of the running games."""

    def begin(self, seen: Arrays, reset: Array) -> None:
        """Empty the memories where an episode begins, and put its first observation in."""
        rows = np.flatnonzero(reset)
        self.last[rows] = 0.0
        if self.memory is None or not rows.size:
            return
        index = self._tensor(rows)
        self.memory.clear(index)
        self.memory.add(self.policy.embed(self._tensors(seen, rows)), index)

    def inputs(self) -> Arrays:
        """The arms, and what brought them here."""
        return {ARM: self.arms.current, LAST: self.last}

    def epsilon(self) -> Array | None:
        """Those that were chosen with the arms."""
        return self.arms.epsilon

    def judge(self, action: Array, reward: Array, result: StepResult) -> Arrays:
        """What the arms had, and the bonus of what the steps led to."""
        had = self.inputs()
        bonus = np.zeros(len(result.valid), np.float32)
        rows = np.flatnonzero(result.valid)
        if rows.size:
            bonus[rows] = self._bonus(self._tensors(_outcome(result), rows), self._tensor(rows))
        self.bonus_return += bonus
        # A bonus is below 1 where nothing is new, and above 100 where all is.
        self.last = np.stack([action + 1, reward, np.log1p(bonus)], 1).astype(np.float32)
        return had | {BONUS: bonus}

    def _bonus(self, obs: Tensors, rows: Tensor) -> Array:
        """``[K]`` of ``obs`` ``[K, ...]``, what the environments ``rows`` came to."""
        config, policy = self.config, self.policy
        episodic = torch.ones(len(rows), device=policy.device)
        if self.memory is not None:
            episodic = self.memory.judge(policy.embed(obs), rows)
        if config.life_long:
            error = policy.novelty_errors(obs).double()
            everywhere = torch.ones_like(error, dtype=torch.bool)
            self.moments = update_moments(self.moments, error, everywhere)
            deviation = (self.moments.square / self.moments.num).sqrt()
            bonus = intrinsic_rewards(episodic, error, self.moments.mean, deviation, config.limit)
        else:
            bonus = episodic
        if self.memory is None:
            bonus = bonus - 1.0  # a reward for every step would say nothing of where it led
        found: Array = bonus.float().cpu().numpy()
        return found

    def end(self, ended: Ended) -> list[Array]:
        """Arm, whether it exploits, mean bonus and, if it was chosen, epsilon of games that ended;
        others may be chosen."""
        rows = ended.rows
        arm, epsilon = self.arms.current[rows], self.arms.epsilon
        chosen = [] if epsilon is None else [epsilon[rows]]
        mean = self.bonus_return[rows] / np.maximum(ended.lengths, 1)
        self.bonus_return[rows] = 0.0
        self.arms.end(rows, ended.returns)
        return [arm.astype(np.float64), (arm == 0).astype(np.float64), mean, *chosen]

    def save(self) -> Arrays:
        """Memories, moments, arms and the windows of their bandits."""
        out = self.carried_over()
        if self.memory is not None:
            out |= {f"memory/{name}": leaf for name, leaf in self.memory.save().items()}
        return out | {"bonus_return": self.bonus_return.copy(), "last": self.last.copy()}

    def load(self, arrays: Arrays) -> None:
        """Go on from :meth:`save`."""
        self.take_over(arrays)
        if self.memory is not None:
            self.memory.load(under("memory/", arrays))
        self.bonus_return, self.last = arrays["bonus_return"], arrays["last"]

    def carried_over(self) -> Arrays:
        """All but what is of the running episodes."""
        out = {f"arms/{name}": leaf for name, leaf in self.arms.save().items()}
        if self.memory is not None:
            out |= {f"memory/{name}": leaf for name, leaf in self.memory.carried_over().items()}
        return out | {"moments": torch.stack(self.moments).cpu().numpy()}

    def take_over(self, arrays: Arrays) -> None:
        """Go on with the arms, their bandits, and what is known of how new things are."""
        self.arms.load(under("arms/", arrays))
        if self.memory is not None:
            self.memory.take_over(under("memory/", arrays))
        self.moments = RunningMoments(*self._tensor(arrays["moments"]))

    def _tensors(self, arrays: Arrays, rows: Array) -> Tensors:
        return {name: self._tensor(leaf[rows]) for name, leaf in arrays.items()}

    def _tensor(self, array: Array) -> Tensor:
        return as_tensor(array, self.policy.device)


def curiosity_of(
    config: DQNConfig, policy: Any, streams: Array, rng: np.random.Generator
) -> Indifference:
    """What an actor with these settings has, for its environments ``streams``."""
    exploring = config.exploring
    return Indifference() if exploring is None else Curiosity(exploring, policy, streams, rng)


def blank_carried_over(config: DQNConfig, policy: Any, num_envs: int) -> Arrays:
    """What an actor with these settings leaves before it acts; no large memory is made for it."""
    exploring = config.exploring
    if exploring is None:
        return {}
    small = replace(exploring.novelty, capacity=exploring.novelty.num_neighbours)
    rng = np.random.default_rng(0)
    curiosity = Curiosity(exploring._replace(novelty=small), policy, np.arange(num_envs), rng)
    return curiosity.carried_over()


def _outcome(result: StepResult) -> Arrays:
    """What the steps led to: the last observation of an episode that ended, not the next first."""
    ended = result.terminated | result.truncated
    if result.final_obs is None or not ended.any():
        return result.obs
    out = {name: leaf.copy() for name, leaf in result.obs.items()}
    for name, leaf in result.final_obs.items():
        out[name][ended] = leaf[ended]
    return out
