"""How long a run under `local` takes to begin, and an actor to be replaced.

Two actors, a learner and an evaluator on CartPole. The first rollout is taken as the first record,
which is written after one update of two short rollouts. CPU seconds are those of the whole tree of
processes; memory is what all of them hold, pages that several share counted once.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECS = 120.0
FLAGS = (
    "--formation", "sync", "--engine", "local", "--actors", "2", "--envs", "4",
    "--ppo.rollout_steps", "8", "--ppo.num_minibatches", "1", "--log-every", "1",
    "--steps", "100000000", "--eval.episodes", "1", "--stop-at", "none", "--quiet",
)  # fmt: skip


def titles(run: Path) -> dict[str, int]:
    """The run's processes by their titles."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().split()
        except (OSError, UnicodeDecodeError):
            continue
        if len(words) == 3 and words[0] == "rookery" and words[2] == run.name:
            found[words[1]] = int(entry.name)
    return found


def until(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> float:
    """When ``condition`` became true."""
    deadline = time.monotonic() + PATIENCE_SECS
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the run ended or hung; its exit code is {process.poll()}")
        time.sleep(0.01)
    return time.monotonic()


def memory_mib(pids: list[int]) -> float:
    """Proportional share of all ``pids``."""
    lines = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids]
    return sum(int(x.split()[1]) for some in lines for x in some if x.startswith("Pss:")) / 1024


def measure(run: Path) -> dict[str, float]:
    """One run, from its launch to the replacement of an actor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    command = [sys.executable, "-m", "rookery", "train", "CartPole-v1", *FLAGS, "--run", str(run)]
    process = subprocess.Popen(command)
    metrics = run / "metrics.jsonl"
    try:
        first = until(lambda: metrics.exists() and metrics.stat().st_size, process) - begun
        until(lambda: "evaluator-0" in titles(run), process)
        memory = memory_mib([process.pid, *titles(run).values()])
        victim = titles(run)["actor-1"]
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        size = 0

        def going_on() -> bool:
            nonlocal size
            if titles(run).get("actor-1", victim) == victim:
                size = metrics.stat().st_size
                return False
            return metrics.stat().st_size > size + 4000

        replaced = until(going_on, process) - killed
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"first record, s": first, "replaced, s": replaced, "CPU, s": cpu, "MiB": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as root:
        rows = [measure(Path(root) / f"start-up-{i}") for i in range(repeats)]
    print(
        f"median of {repeats}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name in rows[0]:
        print(f"  {name:<16} {statistics.median(row[name] for row in rows):8.2f}")


if __name__ == "__main__":
    main()
