"""How many steps a second Snake makes: `python benchmarks/snake_speed.py`.

The random policy dies early and so measures resets, too; the careful one turns away from walls and
towards what it sees of the scarcer store, lives long and measures eating.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rookery.envs.snake import SnakeEnv
from rookery.envs.snake_vector import SnakeVectorEnv
from rookery.envs.snake_world import BODY_FEATURES, NUM_RAYS, RAYS, WALL_FEATURES

Policy = Callable[[NDArray[np.float32]], NDArray[np.int64]]

# Columns of the four straight rays, in the order of the actions -x, +y, +x, -y.
_AHEAD = np.array([RAYS.index(ray) for ray in ((-1, 0), (0, 1), (1, 0), (0, -1))])


def random_policy(generator: np.random.Generator) -> Policy:
    return lambda features: generator.integers(0, 4, size=len(features))


def careful_policy(generator: np.random.Generator) -> Policy:
    def act(features: NDArray[np.float32]) -> NDArray[np.int64]:
        thirsty = (features[:, 33] < features[:, 32]).astype(np.int64)
        distance = features[np.arange(len(features))[:, None], thirsty[:, None] * NUM_RAYS + _AHEAD]
        score = generator.random(distance.shape) + np.where(distance > 0, 100 - distance, 0)
        near_wall = features[:, WALL_FEATURES][:, _AHEAD] < 0.2
        backwards = features[:, BODY_FEATURES][:, _AHEAD] > 0
        chosen: NDArray[np.int64] = np.where(near_wall | backwards, -1.0, score).argmax(axis=1)
        return chosen

    return act


def vector_speed(num_envs: int, policy: Policy, seconds: float) -> tuple[float, float]:
    """Steps per second spent inside `step`, and the mean length of an episode."""
    envs = SnakeVectorEnv(num_envs)
    features, _ = envs.reset(seed=0)
    spent, calls, ends = 0.0, 0, 1
    while spent < seconds:
        actions = policy(features)
        start = time.perf_counter()
        features, _, terminated, _, _ = envs.step(actions)
        spent += time.perf_counter() - start
        calls += 1
        ends += int(terminated.sum())
    return calls * num_envs / spent, calls * num_envs / ends


def single_speed(policy: Policy, seconds: float) -> float:
    """Steps per second of one `SnakeEnv`, resets included."""
    env = SnakeEnv()
    features, _ = env.reset(seed=0)
    spent, steps = 0.0, 0
    while spent < seconds:
        action = policy(features[None])[0]
        start = time.perf_counter()
        features, _, terminated, _, _ = env.step(action)
        if terminated:
            features, _ = env.reset()
        spent += time.perf_counter() - start
        steps += 1
    return steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=2.0, help="time per line")
    args = parser.parse_args()
    for name, make in (("random", random_policy), ("careful", careful_policy)):
        policy = make(np.random.default_rng(0))
        speed, length = vector_speed(args.num_envs, policy, args.seconds)
        print(
            f"{args.num_envs} snakes, {name} policy: {speed:,.0f} steps/s "
            f"(mean episode {length:.0f} steps)"
        )
        print(f"1 snake, {name} policy: {single_speed(policy, args.seconds):,.0f} steps/s")


if __name__ == "__main__":
    main()
