"""Small environments for tests, with factories that worker processes can import."""

from __future__ import annotations

import os
import signal
import time
import zlib
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

AnySpace = spaces.Space[Any]


def random_space(rng: np.random.Generator, depth: int = 2) -> AnySpace:
    """Any supported observation space."""
    kinds = 7 if depth == 0 else 9
    kind = int(rng.integers(kinds))
    shape = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0, 3))))
    if kind == 0:
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    if kind == 1:
        return spaces.Box(-2.0, 3.0, shape, np.float64)
    if kind == 2:
        return spaces.Box(0, 255, (2, 3), np.uint8)
    if kind == 3:
        return spaces.Box(-5, 5, shape, np.int32)
    if kind == 4:
        return spaces.Discrete(int(rng.integers(1, 6)), start=int(rng.integers(-3, 4)))
    if kind == 5:
        nvec = rng.integers(1, 6, (2, 2) if rng.integers(2) else (3,))
        return spaces.MultiDiscrete(nvec, start=rng.integers(-3, 4, nvec.shape))
    if kind == 6:
        return spaces.MultiBinary((2, 2) if rng.integers(2) else 3)
    inner = [random_space(rng, depth - 1) for _ in range(int(rng.integers(1, 4)))]
    if kind == 7:
        return spaces.Tuple(inner)
    return spaces.Dict({f"key{i}": space for i, space in enumerate(inner)})


def random_action_space(rng: np.random.Generator) -> AnySpace:
    """Any supported action space."""
    kind = int(rng.integers(4))
    if kind == 0:
        return spaces.Discrete(int(rng.integers(2, 6)), start=int(rng.integers(-2, 3)))
    if kind == 1:
        nvec = rng.integers(2, 5, (2, 2) if rng.integers(2) else (3,))
        return spaces.MultiDiscrete(nvec, start=rng.integers(-2, 3, nvec.shape))
    if kind == 2:
        return spaces.MultiBinary(3)
    return spaces.Box(-1.0, 2.0, (2, 2), np.float64 if rng.integers(2) else np.float32)


class RandomEnv(gym.Env[Any, Any]):
    """Everything it returns is a pure function of its reset seed and the actions so far.

    It refuses actions that its action space does not contain, and ends episodes in every way.
    """

    def __init__(self, space_seed: int = 0, longest: int = 9) -> None:
        rng = np.random.default_rng(space_seed)
        self.observation_space = random_space(rng)
        self.action_space = random_action_space(rng)
        self._longest = longest
        self._key = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._key = int(self.np_random.integers(2**31))
        self._left = int(self.np_random.integers(1, self._longest + 1))
        return self._observe()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        self._key = zlib.crc32(np.asarray(action).tobytes(), self._key)
        self._left -= 1
        over = self._left == 0
        terminated, truncated = [(True, False), (False, True), (True, True)][self._key % 3]
        obs, info = self._observe()
        return obs, self._key / 1000.0, over and terminated, over and truncated, info

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(self._key)
        info: dict[str, Any] = {"mask": self._mask()}
        if self._key % 2:
            info["score"] = float(self._key % 100)
        return self.observation_space.sample(), info

    def _mask(self) -> np.ndarray[Any, np.dtype[np.int8]]:
        if isinstance(self.action_space, spaces.Discrete):
            count = int(self.action_space.n)
        elif isinstance(self.action_space, spaces.MultiDiscrete):
            count = int(self.action_space.nvec.sum())
        else:
            count = 1
        mask = np.ones(count, np.int8)
        if isinstance(self.action_space, spaces.Discrete):
            mask[self._key % count] = 0
        return mask


class MaskedEnv(RandomEnv):
    """A RandomEnv with a Discrete action space, so that its mask means something."""

    def __init__(self, longest: int = 9) -> None:
        super().__init__(longest=longest)
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(4)


class NoisyEnv(gym.Env[Any, Any]):
    """Not repeatable: it draws from a generator that reset does not seed."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._rng = np.random.default_rng()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._rng.random(2, np.float32), 1.0, False, False, {}


class FaultyEnv(gym.Env[Any, Any]):
    """Behaves until step ``at`` of episode ``episode``, then fails in the way ``fault`` names."""

    action_space = spaces.Discrete(3)

    def __init__(self, fault: str = "", at: int = 2, episode: int = 0, length: int = 5) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        if fault == "range":
            self.observation_space = spaces.Discrete(3)
        self._fault, self._at, self._episode, self._length = fault, at, episode, length
        self._num_episodes = -1
        self._num_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_episodes += 1
        self._num_steps = 0
        if self._due("reset"):
            raise RuntimeError("the reset\nbroke")
        if self._due("hang_reset"):
            time.sleep(60)
        return self._obs(), {"mask": np.ones(3, np.int8)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        self._act_up()
        info = {} if self._due("no_mask") else {"mask": np.ones(3, np.int8)}
        if self._due("empty_mask"):
            info["mask"] = np.zeros(3, np.int8)
        if self._due("mask_shape"):
            info["mask"] = np.ones(4, np.int8)
        over = self._num_steps >= self._length
        return self._obs(), self._reward(), over, False, info

    def _due(self, fault: str) -> bool:
        now = self._num_episodes >= self._episode and self._num_steps >= self._at
        return self._fault == fault and now

    def _act_up(self) -> None:
        if self._due("raise"):
            raise ValueError("the wheels\ncame off")
        if self._due("hang"):
            time.sleep(60)
        while self._due("spin"):
            time.sleep(0.001)
        if self._due("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._due("exit"):
            os._exit(7)

    def _reward(self) -> Any:
        if self._due("inf_reward"):
            return float("inf")
        if self._due("vector_reward"):
            return np.zeros(2)
        return "much" if self._due("text_reward") else 0.5

    def _obs(self) -> Any:
        if self._fault == "range":
            return 3 if self._due("range") else 1
        if self._due("shape"):
            return np.zeros(3, np.float32)
        if self._due("scalar"):
            return np.float32(0.5)
        if self._due("dtype"):
            return np.array(["a", "b"])
        if self._due("nan"):
            return np.array([0.0, np.nan], np.float32)
        return np.full(2, self._num_steps / 10, np.float32)


class Shift(gym.RewardWrapper[Any, Any]):
    """Adds ``by`` to the reward."""

    def __init__(self, env: gym.Env[Any, Any], by: float = 1.0) -> None:
        super().__init__(env)
        self._by = by

    def reward(self, reward: Any) -> float:
        return float(reward) + self._by


def vector_or_single(num_envs: int | None = None, longest: int = 9, mode: str = "NextStep") -> Any:
    """A factory that gives a vector when it is asked for ``num_envs``, else one environment."""
    if num_envs is None:
        return RandomEnv(longest=longest)
    return SyncVectorEnv(
        [lambda: RandomEnv(longest=longest)] * num_envs, autoreset_mode=AutoresetMode(mode)
    )


def other_spaces(num_envs: int | None = None) -> Any:
    """A factory whose vector has other spaces than its single environment."""
    return RandomEnv() if num_envs is None else LimitedVector(num_envs)


def not_an_env() -> Any:
    """A factory that returns something else."""
    return object()


def needs_missing_package() -> Any:
    """A factory that imports what is not there."""
    import a_package_nobody_has  # type: ignore[import-not-found] # noqa: F401


not_callable = 3


class LimitedVector(gym.vector.VectorEnv[Any, Any, Any]):
    """A vector class that takes no max_episode_steps."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.single_observation_space = FaultyEnv().observation_space
        self.single_action_space = FaultyEnv.action_space
