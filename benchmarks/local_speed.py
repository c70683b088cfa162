"""Steps/s of `local` with two actors against `inline`, on an environment that costs 0.2 ms a step.

    python benchmarks/local_speed.py

Both train PPO with 16 environments in all and the same settings, interleaved; the ceiling is what
the environment alone allows: one or two cores divided by 0.2 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
STEP_SECS = 2e-4
VARIANTS = {
    "inline": ["--engine", "inline", "--actors", "1", "--envs", "16"],
    "local": ["--engine", "local", "--actors", "2", "--envs", "16"],
}


def measure(variant: str, steps: int, root: Path, number: int) -> float:
    """Steps/s between the first and the last record: start-up is not training."""
    run = root / f"{variant}-{number}"
    subprocess.run(
        [
            sys.executable, "-m", "rookery", "train", "burning_env:make_env", *VARIANTS[variant],
            "--ppo.rollout_steps", "64", "--ppo.num_epochs", "2", "--eval.episodes", "0",
            "--steps", str(steps), "--log-every", "2000", "--run", str(run), "--quiet",
        ],
        check=True,
        env=os.environ | {"PYTHONPATH": str(HERE)},
    )  # fmt: skip
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = records[0], records[-1]
    return (last["steps"] - first["steps"]) / (last["wall_secs"] - first["wall_secs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as root:
        for number in range(args.repeats):
            for name in VARIANTS:
                rates[name].append(measure(name, args.steps, Path(root), number))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    cores = min(2, os.cpu_count() or 1)
    print("| engine | env steps/s (median) | runs | share of the environments' own limit |")
    print("|---|---|---|---|")
    for name, limit in (("inline", 1 / STEP_SECS), ("local", cores / STEP_SECS)):
        runs = ", ".join(f"{value:,.0f}" for value in rates[name])
        print(f"| {name} | {medians[name]:,.0f} | {runs} | {medians[name] / limit:.0%} |")
    print(f"\nlocal / inline: {medians['local'] / medians['inline']:.2f} (ceiling {cores})")


if __name__ == "__main__":
    main()
