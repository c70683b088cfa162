"""Frames/s and steps/s of Super Mario Bros on one core, as its emulator was compiled:

    python benchmarks/emulator.py [--secs 5]

Chance plays; nothing is learned. Nothing else should run.
"""

from __future__ import annotations

import argparse
import time

import gymnasium as gym
import numpy as np

import rookery  # noqa: F401  (it registers the game)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=5.0)
    given = parser.parse_args()
    env = gym.make("rookery/SuperMarioBros-1-1-v0", actions="right_only")
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    steps, begun = 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < given.secs:
        *_, terminated, truncated, _ = env.step(rng.integers(env.action_space.n))
        steps += 1
        if terminated or truncated:
            env.reset()
    env.close()
    print(f"{steps / took:.0f} steps/s, {4 * steps / took:.0f} frames/s")


if __name__ == "__main__":
    main()
