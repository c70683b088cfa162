"""Drives a vector backend against a plain loop over single environments.

Use it for a backend, or a vector environment, of your own::

    envs = NativeVector(my_vector_env, config, run_seed=7)
    first = seed_of(7, "env", 0)
    check_vector(
        envs,
        [make_env(config) for _ in range(envs.num_envs)],
        seed_for=lambda index, episode: first + index if episode == 0 else None,
        num_steps=500,
    )

The plain loop is what gymnasium's documentation shows: reset, step until the episode ended, reset.
Both take the same random actions; the first difference in an observation, a reward, an end or a
last observation raises :class:`ConformanceError`, which names step and environment.

Shapes: B environments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rookery.core.spec import ACTION_MASK, Array, Arrays, LeafSpec
from rookery.envs.spaces import concatenate_mask, env_action, flatten_obs
from rookery.envs.transition import StepResult, VectorEnv

SeedFor = Callable[[int, int], int | None]
"""The seed of an environment's episode, by their numbers; None where it continues unseeded."""


class ConformanceError(AssertionError):
    """A vector backend differs from a plain loop over single environments."""


@dataclass(slots=True)
class _Transition:
    """One step of the plain loop."""

    obs: Arrays
    reward: float
    terminated: bool
    truncated: bool


class _PlainLoop:
    """One environment, stepped the way gymnasium's documentation shows."""

    def __init__(
        self, index: int, env: gym.Env[Any, Any], seed_for: SeedFor, mask_key: str | None
    ) -> None:
        self._index = index
        self._env = env
        self._seed_for = seed_for
        self._mask_key = mask_key
        self._episode = 0

    def reset(self) -> Arrays:
        obs, info = self._env.reset(seed=self._seed_for(self._index, self._episode))
        self._episode += 1
        return self._leaves(obs, info)

    def step(self, action: Array) -> _Transition:
        move = env_action(self._env.action_space, action)
        obs, reward, terminated, truncated, info = self._env.step(move)
        return _Transition(
            obs=self._leaves(obs, info),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated) and not terminated,
        )

    def _leaves(self, obs: Any, info: dict[str, Any]) -> Arrays:
        leaves = flatten_obs(self._env.observation_space, obs)
        if self._mask_key is not None:
            leaves[ACTION_MASK] = concatenate_mask(info[self._mask_key]).astype(np.int8)
        return leaves


def check_vector(
    vector: VectorEnv,
    singles: Sequence[gym.Env[Any, Any]],
    *,
    seed_for: SeedFor,
    num_steps: int,
    action_seed: int = 0,
    mask_key: str | None = None,
) -> int:
    """Step ``vector`` and ``singles`` alike; returns how many episodes ended.

    Raises :class:`ConformanceError` at the first difference. ``vector`` is left open, and
    ``mask_key`` is its ``env.action_mask_key``.
    """
    loops = [_PlainLoop(index, env, seed_for, mask_key) for index, env in enumerate(singles)]
    _require(len(loops) == vector.num_envs, f"{vector.num_envs} rows, {len(loops)} environments")
    rng = np.random.default_rng(action_seed)
    obs = vector.reset()
    for index, loop in enumerate(loops):
        _same_obs(vector, obs, index, loop.reset(), f"reset of environment {index}")
    waiting = [False] * len(loops)
    num_ended = 0
    for step in range(num_steps):
        actions = sample_actions(rng, vector.action_leaf, vector.num_envs)
        out = vector.step(actions)
        _check_result(vector, out, f"step {step}")
        for index, loop in enumerate(loops):
            where = f"step {step} of environment {index}"
            if waiting[index]:
                _check_spent_on_reset(vector, out, index, loop, where)
                waiting[index] = False
            elif _check_row(vector, out, index, loop, actions[index], where):
                num_ended += 1
                waiting[index] = not out.reset[index]
    return num_ended


def sample_actions(rng: np.random.Generator, leaf: LeafSpec, num_envs: int) -> Array:
    """Random internal actions ``[B, ...]``, some of a Box's beyond its bounds."""
    shape = (num_envs, *leaf.shape)
    if leaf.sizes:
        sizes = np.asarray(leaf.sizes) if leaf.shape else leaf.sizes[0]
        return rng.integers(0, sizes, shape).astype(leaf.dtype)
    if leaf.kind == "multi_binary":
        return rng.integers(0, 2, shape).astype(leaf.dtype)
    return rng.normal(0.0, 1.5, shape).astype(leaf.dtype)


def _check_spent_on_reset(
    vector: VectorEnv, out: StepResult, index: int, loop: _PlainLoop, where: str
) -> None:
    """The row after an end that was not reset at once must be the reset, and nothing else."""
    _require(not out.valid[index], f"{where}: valid, but the ended episode was never reset")
    _require(bool(out.reset[index]), f"{where}: not valid, and yet no reset")
    ended = bool(out.terminated[index] or out.truncated[index])
    _require(not ended and out.reward[index] == 0.0, f"{where}: a reset with a reward or an end")
    _same_obs(vector, out.obs, index, loop.reset(), f"{where} (begins an episode)")


def _check_row(
    vector: VectorEnv, out: StepResult, index: int, loop: _PlainLoop, action: Array, where: str
) -> bool:
    """Compare one valid row with one step of the plain loop; True if the episode ended."""
    _require(bool(out.valid[index]), f"{where}: not valid, but the episode had not ended")
    expected = loop.step(action)
    for what in ("reward", "terminated", "truncated"):
        got, wanted = getattr(out, what)[index], getattr(expected, what)
        _require(got == wanted, f"{where}: {what} is {got}, the plain loop has {wanted}")
    if not (expected.terminated or expected.truncated):
        _require(not out.reset[index], f"{where}: a reset within an episode")
        _same_obs(vector, out.obs, index, expected.obs, where)
        return False
    if out.final_obs is None:
        raise ConformanceError(f"{where}: the episode ended, but there is no final_obs")
    _same_obs(vector, out.final_obs, index, expected.obs, f"{where} (last of its episode)")
    if out.reset[index]:
        _same_obs(vector, out.obs, index, loop.reset(), f"{where} (begins an episode)")
    return True


def _check_result(vector: VectorEnv, out: StepResult, where: str) -> None:
    """Shapes and dtypes of a whole result."""
    expected = {"reward": np.float64} | dict.fromkeys(
        ("terminated", "truncated", "valid", "reset"), np.bool_
    )
    for what, dtype in expected.items():
        array = getattr(out, what)
        _require(
            array.shape == (vector.num_envs,) and array.dtype == dtype,
            f"{where}: {what} is {array.dtype} {array.shape}",
        )
    _require(not (out.terminated & out.truncated).any(), f"{where}: terminated and truncated")
    ended = bool((out.terminated | out.truncated).any())
    _require((out.final_obs is not None) == ended, f"{where}: final_obs without an end, or none")


def _same_obs(vector: VectorEnv, obs: Arrays, index: int, expected: Arrays, where: str) -> None:
    _require(set(obs) == set(vector.obs_leaves) == set(expected), f"{where}: leaves {set(obs)}")
    for name, leaf in vector.obs_leaves.items():
        array = obs[name]
        _require(
            array.shape == (vector.num_envs, *leaf.shape) and array.dtype == leaf.dtype,
            f"{where}: '{name}' is {array.dtype} {array.shape}, declared {leaf.dtype} {leaf.shape}",
        )
        _require(
            np.array_equal(array[index], expected[name]),
            f"{where}: '{name}' is {array[index]}, the plain loop has {expected[name]}",
        )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ConformanceError(what)
