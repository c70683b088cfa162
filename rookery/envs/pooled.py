"""Environments of envpool: the same tasks written in C++, stepped together.

Training may use them by itself (``env.backend: auto``) where that was measured to be faster;
evaluation never does: scores are those of gymnasium's own environments.

An episode that ends by itself in exactly the last step of its limit is told as truncated; envpool
does not say more.

Shapes: B environments.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from rookery.core.errors import near_names
from rookery.envs.faults import one_line

if TYPE_CHECKING:
    from rookery.envs.make import EnvConfig

FASTER = frozenset({"BipedalWalker-v3", "BipedalWalkerHardcore-v3", "LunarLanderContinuous-v3"})
"""Ids for which ``auto`` takes envpool: the same task as far as the tests can tell, and slow enough
in Python that a run waits for its environments."""

_NO_LIMIT = 2**31 - 1
_SEEDS = 2**31


class CannotPoolError(Exception):
    """What envpool cannot do here, and a remedy, in one line."""


def installed() -> bool:
    """Whether envpool is there; asking does not import it."""
    return importlib.util.find_spec("envpool") is not None


def unfit(config: EnvConfig) -> str:
    """The setting that envpool cannot carry out, '' if there is none."""
    if config.wrappers:
        return "envpool takes no env.wrappers"
    if config.obs_keys is not None:
        return "envpool takes no env.obs_keys"
    if config.kwargs:
        return "envpool takes no env.kwargs"
    if config.action_mask_key is not None:
        return "envpool gives no action masks (env.action_mask_key)"
    return ""


class PooledVector(gym.vector.VectorEnv[Any, Any, Any]):
    """``num_envs`` environments of envpool with the spaces and the limit of the ``single`` one.

    Raises :class:`CannotPoolError` if envpool lacks them, or has others under this name.
    """

    def __init__(self, env_id: str, num_envs: int, single: gym.Env[Any, Any]) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.env_id, self.num_envs = env_id, num_envs
        self.max_episode_steps = single.spec.max_episode_steps if single.spec else None
        self.single_observation_space = single.observation_space
        self.single_action_space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self._pool: Any = None
        self._envpool = _load(env_id)
        _require_spaces(self._envpool.make_spec(env_id), env_id, single)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin anew; with a seed in a new pool, since a pool takes its seed where it is made."""
        if self._pool is None or seed is not None:
            self.close()
            self._pool = self._make(seed if isinstance(seed, int) else 0)
        obs, infos = self._pool.reset()
        return obs, infos

    def _make(self, seed: int) -> Any:
        # One thread, as an actor has a core of its own; envpool takes every core by default. Its
        # threads are pinned to no core, also by default. Row i has the seed after row i - 1.
        return self._envpool.make(
            self.env_id,
            env_type="gymnasium",
            num_envs=self.num_envs,
            num_threads=1,
            seed=seed % (_SEEDS - self.num_envs),
            max_episode_steps=self.max_episode_steps or _NO_LIMIT,
        )

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of all; the step after an end is spent on the reset."""
        obs, reward, terminated, truncated, infos = self._pool.step(actions)
        return obs, reward, terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Let go of the pool, which ends its threads; envpool's own close leaves them running."""
        self._pool = None


def _load(env_id: str) -> Any:
    try:
        envpool = importlib.import_module("envpool")
    except ImportError as error:
        raise CannotPoolError(
            f'{one_line(error)}; pip install "rookery[envpool]", or use env.backend=auto'
        ) from error
    known = envpool.list_all_envs()
    if env_id not in known:
        hint = near_names(env_id, known)
        raise CannotPoolError(f"envpool has no {env_id}{hint}; use env.backend=auto")
    return envpool


def _require_spaces(spec: Any, env_id: str, single: gym.Env[Any, Any]) -> None:
    pairs = (
        ("observations", spec.observation_space, single.observation_space),
        ("actions", spec.action_space, single.action_space),
    )
    for what, theirs, ours in pairs:
        if not _alike(theirs, ours):
            raise CannotPoolError(
                f"the {what} of envpool's {env_id} are {theirs}, gymnasium's are {ours}; "
                "use env.backend=auto"
            )


def _alike(theirs: gym.Space[Any], ours: gym.Space[Any]) -> bool:
    """Whether arrays of one space do for the other. envpool leaves bounds out where it likes."""
    if isinstance(ours, Discrete):
        return isinstance(theirs, Discrete) and (theirs.n, theirs.start) == (ours.n, ours.start)
    return isinstance(ours, Box) and isinstance(theirs, Box) and theirs.shape == ours.shape
