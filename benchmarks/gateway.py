"""What the network link costs on one machine: two actors of `local`, or one of them joined.

::

    python -m benchmarks.gateway --pairs 5

Both learn the same from as many environments, in turn, the first of a pair changing. The second
actor is either a process of the head, or of `rookery join` over loopback, so that its experience
goes through the gateway. A ratio is of one pair. Nothing else should run.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.many_hosts import HERE, START_UP_SECS, join_line, settled

COMMON = (
    "--eval.episodes", "0", "--stop-at", "none", "--eval-every", "none", "--log-every", "100",
    "--save-every", "100000000", "--metrics.sinks", "jsonl", "--steps", "100000000", "--plain",
    "--engine", "local",
)  # fmt: skip
JOBS = {
    "Ape-X, Pong": ("apex-pong", "--apex.learning_starts", "1000"),
    "IMPALA, Pong": (
        "pong", "--algo", "impala", "--formation", "async", "--async.batch_envs", "8",
    ),
    "Ape-X, 0.2 ms a step": (
        "benchmarks.burning_env:make_env", "--algo", "apex", "--apex.learning_starts", "500",
        "--apex.batch_size", "64", "--apex.steps_per_update", "32",
    ),
}  # fmt: skip
ENVS = 4
"""Of each actor."""


def rate(job: str, joined: bool, secs: float) -> float:
    """Steps/s."""
    with tempfile.TemporaryDirectory() as root:
        run, log = Path(root) / "run", Path(root) / "head.log"
        here = 1 if joined else 2
        words = [sys.executable, "-m", "rookery"]
        head = [*words, "train", *JOBS[job], *COMMON, "--run", str(run)]
        head += ["--actors", str(here), "--envs", str(ENVS * here)]
        head += ["--listen", f"127.0.0.1:{free_port()}"] if joined else []
        with log.open("wb") as said:
            processes = [subprocess.Popen(head, stdout=said, stderr=said, cwd=root)]
        if joined:
            line = join_line(log, time.monotonic() + START_UP_SECS)
            host = Path(root, "host.log").open("wb")  # noqa: SIM115  closed with the process
            joins = [*words, *line, "--actors", "1"]
            processes.append(subprocess.Popen(joins, stdout=host, stderr=host, cwd=root))
        try:
            return settled(run, 2, secs, log)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60.0)


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--secs", type=float, default=12.0, help="of each measurement")
    parser.add_argument("--only", nargs="*", help="parts of the jobs' names")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE)
    print("| job | local | one of two joined | ratio | range |\n|---|---|---|---|---|")
    for job in JOBS:
        if given.only and not any(word in job for word in given.only):
            continue
        rates: dict[bool, list[float]] = {False: [], True: []}
        for pair in range(given.pairs):
            for joined in (False, True) if pair % 2 else (True, False):
                rates[joined].append(rate(job, joined, given.secs))
        ratios = [there / here for here, there in zip(rates[False], rates[True], strict=True)]
        here, there = (statistics.median(rates[joined]) for joined in (False, True))
        print(
            f"| {job} | {here:,.0f} | {there:,.0f} | {statistics.median(ratios):.2f} | "
            f"{min(ratios):.2f} to {max(ratios):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
