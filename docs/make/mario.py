"""How far agents get in Super Mario Bros, beside chance and a fixed action.

    python docs/make/mario.py RUN [RUN ...] [--episodes 50] [--stage 1-1]

Prints the table of docs/results.md: chance, always to the right, and what each run (or `zoo:NAME`)
plays with sampled actions by ``rookery eval``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

import rookery  # noqa: F401  (it registers the game)


def played(stage: str, act: Callable[[Any], int], episodes: int) -> dict[str, float]:
    """Means of whole episodes in which ``act`` chooses among the actions' names."""
    env = gym.make(f"rookery/SuperMarioBros-{stage}-v0", actions="right_only")
    names = env.get_wrapper_attr("get_action_meanings")()
    found = []
    for episode in range(episodes):
        env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, info = env.step(act(names))
            total, ended = total + float(reward), terminated or truncated
        found.append((total, info["x_max"], info["flag_get"]))
    env.close()
    means = (statistics.fmean(column) for column in zip(*found, strict=True))
    return dict(zip(("return", "x_max", "flag"), means, strict=True))


def evaluated(run: str, stage: str, episodes: int) -> dict[str, float]:
    """The same of an agent."""
    words = ["eval", run, "--episodes", str(episodes), "--stochastic", "--json"]
    words += ["--env.id", f"rookery/SuperMarioBros-{stage}-v0"]
    command = [sys.executable, "-m", "rookery", *words]
    told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    means = told["info_means"]
    return {"return": told["return_mean"], "x_max": means["x_max"], "flag": means["flag_get"]}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--stage", default="1-1")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    print("| who plays | reward | furthest x | reach the flag |\n|---|---|---|---|")
    simple: dict[str, Callable[[Any], int]] = {
        "chance": lambda names: int(rng.integers(len(names))),
        "always right": lambda names: names.index("right"),
        "always right, running": lambda names: names.index("right B"),
        "always right, jumping": lambda names: names.index("right A"),
    }
    rows = {
        name: lambda act=act: played(given.stage, act, given.episodes)
        for name, act in simple.items()
    }
    rows |= {run: lambda run=run: evaluated(run, given.stage, given.episodes) for run in given.runs}
    for name, measure in rows.items():
        found = measure()
        shown = f"{found['return']:,.0f} | {found['x_max']:,.0f} | {found['flag']:.0%}"
        print(f"| {name} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
