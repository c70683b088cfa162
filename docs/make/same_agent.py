"""The same agent in every formation: steps until CartPole is solved, by its recipe.

::

    python docs/make/same_agent.py            # the table of docs/results.md
    python docs/make/same_agent.py --only mpi --seeds 31

Each row is the recipe `cartpole` as it is, carried by other processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
ROOKERY = [sys.executable, "-m", "rookery", "train", "cartpole", "--quiet"]
ROWS: dict[str, list[str]] = {
    "`inline`": [*ROOKERY],
    "`local`, 2 actors": [*ROOKERY, "--engine", "local", "--actors", "2"],
    "`mpiexec -n 3`": [MPIEXEC, "-n", "3", *ROOKERY],
    "`mpiexec -n 11`": [MPIEXEC, "-n", "11", *ROOKERY],
    "`allreduce`, `local`, 2 workers": [
        *ROOKERY, "--formation", "allreduce", "--engine", "local", "--actors", "2",
    ],
    "`allreduce`, `local`, 4 workers": [
        *ROOKERY, "--formation", "allreduce", "--engine", "local", "--actors", "4",
    ],
}  # fmt: skip


def steps_to_solve(words: list[str], seed: int) -> str:
    """Steps of the checkpoint that reached 475 over 100 episodes, or how far it came."""
    with tempfile.TemporaryDirectory() as root:
        run = Path(root) / "run"
        flags = ["--seed", str(seed), "--run", str(run)]
        subprocess.run([*words, *flags], check=True, capture_output=True)
        status = json.loads((run / "status.json").read_text())
        lines = (run / "metrics.jsonl").read_text().splitlines()
        judged = [record for record in map(json.loads, lines) if "eval/steps" in record][-1]
    steps = f"{judged['eval/steps']:,}"
    if status["state"] == "solved":
        return steps
    return f"not in {steps} ({judged['eval/return_mean']:.0f})"


def main() -> None:
    """Train every row with every seed and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 31])
    parser.add_argument("--only", nargs="*", help="parts of the rows' names")
    given = parser.parse_args()
    print("| | " + " | ".join(f"seed {seed}" for seed in given.seeds) + " |")
    print("|---|" + "---|" * len(given.seeds))
    for name, words in ROWS.items():
        if not given.only or any(part in name for part in given.only):
            cells = [steps_to_solve(words, seed) for seed in given.seeds]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
