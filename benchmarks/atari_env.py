"""Steps/s of ALE's vector environment alone: `atari_env.py --threads 2 --secs 60`.

Random actions, drawn beforehand; no network. Prints one JSON line.
"""

from __future__ import annotations

import argparse

import numpy as np
from ale_py import AtariVectorEnv
from step_clock import StepClock

NUM_ENVS, ROUND = 32, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--secs", type=float, default=60.0)
    args = parser.parse_args()
    envs = AtariVectorEnv("pong", NUM_ENVS, num_threads=args.threads)
    envs.reset(seed=0)
    choices = np.random.default_rng(0).integers(
        0, int(envs.single_action_space.n), size=(ROUND, NUM_ENVS)
    )
    clock, steps = StepClock(args.secs), 0
    while not clock.over:
        for actions in choices:
            envs.step(actions)
        steps += choices.size
        clock.note(steps)
    clock.report()


if __name__ == "__main__":
    main()
