"""What communication costs under MPI, and Snake against pickled messages.

    python benchmarks/mpi.py

1. `allreduce` with a network of 1.7 M parameters at 2, 4 and 8 ranks: the share of the wall time
   that rank 0 waits for messages, beside the bare all-reduce and broadcast of the same vector,
   measured in the same job.
2. Snake with `sync`: steps/s of `mpiexec -n N rookery train snake` against a loop of the same roles
   that gathers pickled rollouts and broadcasts a state dict each round, interleaved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")


def job(ranks: int, *words: str) -> str:
    done = subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, *words],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def ours(ranks: int, steps: int, envs: int) -> float:
    """Steps/s of the real command between its first and last record."""
    with tempfile.TemporaryDirectory() as root:
        run = Path(root) / "run"
        job(
            ranks, "-m", "rookery", "train", "snake", "--formation", "sync",
            "--envs", str((ranks - 1) * envs), "--steps", str(steps), "--log-every", "10000",
            "--eval.episodes", "0", "--quiet", "--run", str(run),
        )  # fmt: skip
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = records[0], records[-1]
    return float((last["steps"] - first["steps"]) / (last["wall_secs"] - first["wall_secs"]))


def theirs(ranks: int, steps: int, envs: int) -> float:
    words = [str(HERE / "mpi_rank.py"), "pickles", "--steps", str(steps), "--envs", str(envs)]
    return float(json.loads(job(ranks, *words))["steps_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--envs", type=int, default=64, help="of each rank that acts")
    args = parser.parse_args()
    print(
        "| ranks | update | waiting for messages | bare all-reduce | x 8 an update | bare bcast |"
    )
    print("|---|---|---|---|---|---|")
    for ranks in (2, 4, 8):
        found = json.loads(job(ranks, str(HERE / "mpi_rank.py"), "allreduce"))
        print(
            f"| {ranks} | {found['update_ms']:.0f} ms | {found['waiting_share']:.0%} | "
            f"{found['raw_allreduce_ms']:.1f} ms | {found['raw_share']:.0%} | "
            f"{found['raw_broadcast_ms']:.1f} ms |",
            flush=True,
        )
    print("\n| ranks | Rookery, steps/s | pickles, steps/s | ratio |")
    print("|---|---|---|---|")
    for ranks in (2, 3, 5):
        pairs = [
            (ours(ranks, args.steps, args.envs), theirs(ranks, args.steps, args.envs))
            for _ in range(args.repeats)
        ]
        mine, other = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"| {ranks} | {mine:,.0f} | {other:,.0f} | {mine / other:.2f} |", flush=True)


if __name__ == "__main__":
    main()
