"""Many games of one kind in C++ threads: ALE's own vector, made into the task of the single one.

What ALE's vector does otherwise, and how it is set right here:

- it clips rewards unless told not to; raw rewards come out;
- with ``episodic_life`` it restarts the whole game at each lost life; lives are counted here
  instead, and ``infos["life_lost"]`` says where the learner may see an end;
- it begins a game that is over by itself, in the next step; :meth:`reset` with a ``reset_mask``
  comes first, so no step is lost and each game can have a seed of its own;
- it truncates before it looks at the last frame; steps are counted here instead;
- it takes seeds of 31 bits; larger ones are cut;
- it waits for ever after an action that a game does not have; such actions are refused.

Shapes: B games.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode

from rookery.core.spec import Array
from rookery.envs.atari import AtariConfig, Game

_SEEDS = 2**31
_NO_LIMIT = 2**31 - 1

Step = tuple[Array, Array, Array, Array, dict[str, Any]]


class AtariVector(gym.vector.VectorEnv[Any, Any, Any]):
    """``num_envs`` games that begin anew only when :meth:`reset` is told which.

    ``step`` is ``send`` and ``recv``: in between, the games run in threads of their own.
    """

    seeds_rows = True
    """``reset`` takes a seed for each game that it begins, whenever that is."""
    steps_in_background = True

    def __init__(
        self, game: Game, num_envs: int, config: AtariConfig, *, max_steps: int, life_loss: bool
    ) -> None:
        # Costs a tenth of a second, and only games need it.
        from ale_py import AtariVectorEnv

        self._games: Any = AtariVectorEnv(
            game.rom,
            num_envs,
            num_threads=min(config.num_threads, num_envs),
            max_num_frames_per_episode=_NO_LIMIT,
            repeat_action_probability=game.sticky_under(config),
            full_action_space=config.full_action_space,
            autoreset_mode=AutoresetMode.NEXT_STEP,
            img_height=config.screen_size,
            img_width=config.screen_size,
            stack_num=config.stack,
            frameskip=config.frame_skip,
            noop_max=config.noop_max,
            use_fire_reset=config.fire_reset,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
        )
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self.num_envs = num_envs
        self.single_observation_space = self._games.single_observation_space
        self.single_action_space = self._games.single_action_space
        self.observation_space = self._games.observation_space
        self.action_space = self._games.action_space
        self.tells_lost_lives = life_loss
        assert isinstance(self.single_action_space, Discrete)
        self._num_actions = int(self.single_action_space.n)
        self._max_steps = max_steps
        self._lives: Array = np.zeros(num_envs, np.int32)
        self._steps: Array = np.zeros(num_envs, np.int64)

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin all games, or those of ``options["reset_mask"]``, one seed for each of these."""
        obs, infos = self._games.reset(seed=self._seeds(seed), options=options)
        self._lives = infos["lives"]
        self._steps[slice(None) if options is None else options["reset_mask"]] = 0
        return obs, infos

    def _seeds(self, seed: int | list[int] | None) -> Array | None:
        if seed is None:
            return None
        if isinstance(seed, int):
            return np.arange(self.num_envs) + seed % (_SEEDS - self.num_envs)
        return np.asarray([each % _SEEDS for each in seed], np.int64)

    def step(self, actions: Array) -> Step:
        """Step all games; one that is over must begin anew before the next step."""
        self.send(actions)
        return self.recv()

    def send(self, actions: Array) -> None:
        """Let all games take their step in the background."""
        if actions.min() < 0 or actions.max() >= self._num_actions:
            raise ValueError(f"actions must be 0 to {self._num_actions - 1}, got {actions}")
        self._games.send(actions)

    def recv(self) -> Step:
        """Wait for the step that :meth:`send` began."""
        obs, reward, terminated, _, infos = self._games.recv()
        self._steps += 1
        truncated = self._steps >= self._max_steps
        if self.tells_lost_lives:
            infos["life_lost"] = (infos["lives"] < self._lives) & ~(terminated | truncated)
        self._lives = infos["lives"]
        return obs, reward, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Let go of the games, which ends their threads."""
        self._games = None
