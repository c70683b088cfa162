"""CartPole-v1 to a mean return of 475 over 100 episodes: ours and Stable-Baselines3's, interleaved.

    python benchmarks/cartpole.py [--seeds 3] [--first-seed 10]

Time runs from the start of training; imports are reported apart, for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = HERE.parent / ".venv-peers" / "bin" / "python"
RUNNERS = {
    "Rookery": [sys.executable, str(HERE / "cartpole_ours.py")],
    "Stable-Baselines3": [str(PEERS), str(HERE / "cartpole_sb3.py")],
}


def measure(name: str, seed: int) -> dict[str, Any]:
    done = subprocess.run([*RUNNERS[name], str(seed)], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def cell(value: float | None, unit: str = "") -> str:
    return "not reached" if value is None else f"{value:,.1f}{unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    # The recipe was chosen on seeds 0 to 2: judging it there would flatter it.
    parser.add_argument("--first-seed", type=int, default=10)
    args = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in RUNNERS}
    print("| system | seed | train s | steps | import s | 100 fresh episodes |")
    print("|---|---|---|---|---|---|")
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for name in RUNNERS:
            row = measure(name, seed)
            results[name].append(row)
            print(
                f"| {name} | {seed} | {cell(row['train_secs'])} | {row['steps'] or '-'} | "
                f"{row['import_secs']:.1f} | {row['eval_mean']:.1f} |",
                flush=True,
            )
    medians = {
        name: statistics.median(row["train_secs"] or float("inf") for row in rows)
        for name, rows in results.items()
    }
    ours, theirs = medians["Rookery"], medians["Stable-Baselines3"]
    print(f"\nmedian: Rookery {ours:.1f} s, Stable-Baselines3 {theirs:.1f} s")
    print(f"Rookery takes {ours / theirs:.2f} of Stable-Baselines3's time")


if __name__ == "__main__":
    main()
