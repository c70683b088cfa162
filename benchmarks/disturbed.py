"""Whether faults cost learning: DQN on CartPole under `local`, left alone and disturbed, in turn.

::

    python benchmarks/disturbed.py --runs 20                     # the table of docs/results.md
    python benchmarks/disturbed.py --runs 5 --only disturbed -- --dqn.n_step 1

A disturbed run has a random process killed with SIGKILL, or stopped for some seconds, every few
seconds; the seed says which and when. A run has diverged if its values climb past what rewards of
1 at gamma 0.99 allow, 100, by a tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from start_up import titles

VICTIMS = ("actor-0", "actor-1", "replay-0", "learner-0")
MOST_KILLS = 2
"""Of one process; a run gives up when one dies four times in five minutes."""
PAUSES_SECS = (6.0, 14.0)
STOPS_SECS = (1.0, 10.0)
BOUND = 110.0
"""Values above this are out of reach: the sum of 0.99^t is 100."""
SOLVED = 475.0


def disturb(process: subprocess.Popen[bytes], run: Path, rng: random.Random) -> list[str]:
    """Kill and stop processes of ``run`` until it ends; what was done to whom."""
    done: list[str] = []
    while True:
        try:
            process.wait(rng.uniform(*PAUSES_SECS))
            return done
        except subprocess.TimeoutExpired:
            pass
        victim, kill, secs = rng.choice(VICTIMS), rng.random() < 0.5, rng.uniform(*STOPS_SECS)
        pid = titles(run).get(victim)
        if pid is None or (kill and done.count(f"kill {victim}") == MOST_KILLS):
            continue
        if kill:
            os.kill(pid, signal.SIGKILL)
            done.append(f"kill {victim}")
            continue
        os.kill(pid, signal.SIGSTOP)
        time.sleep(secs)
        if titles(run).get(victim) == pid:
            os.kill(pid, signal.SIGCONT)
        done.append(f"stop {victim}")


def train(seed: int, disturbed: bool, root: Path, flags: list[str]) -> dict[str, Any]:
    """One run, and how it went."""
    run = root / f"run-{seed}-{'disturbed' if disturbed else 'alone'}"
    command = [sys.executable, "-m", "rookery", "train", "dqn-cartpole", "--engine", "local"]
    command += ["--actors", "2", "--seed", str(seed), "--run", str(run), "--quiet", *flags]
    with (root / f"{run.name}.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
        done = disturb(process, run, random.Random(seed)) if disturbed else []
        code = process.wait()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    judged = [record for record in records if "eval/return_mean" in record]
    values = [record["train/value_mean"] for record in records if "train/value_mean" in record]
    return {
        "seed": seed,
        "disturbed": disturbed,
        "code": code,
        "solved": any(record["eval/return_mean"] >= SOLVED for record in judged),
        "best": max((record["eval/return_mean"] for record in judged), default=0.0),
        "last": judged[-1]["eval/return_mean"] if judged else 0.0,
        "steps": records[-1]["steps"] if records else 0,
        "value": float(np.max(values)) if values else 0.0,
        "secs": records[-1]["wall_secs"] if records else 0.0,
        "done": done,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each kind of run."""
    lines = [
        "| runs | solved | diverged | steps, median | kills | stops |",
        "|---|---|---|---|---|---|",
    ]
    for disturbed in (False, True):
        some = [row for row in rows if row["disturbed"] is disturbed]
        if some:
            kind = "disturbed" if disturbed else "left alone"
            solved = sum(row["solved"] for row in some)
            diverged = sum(row["value"] > BOUND for row in some)
            steps = np.median([row["steps"] for row in some])
            deeds = [deed for row in some for deed in row["done"]]
            kills = sum(deed.startswith("kill") for deed in deeds)
            lines.append(
                f"| {len(some)} {kind} | {solved} | {diverged} | {steps:,.0f} | {kills} | "
                f"{len(deeds) - kills} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Train in turn, print each run as it ends and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", choices=("alone", "disturbed"))
    parser.add_argument("--keep", type=Path, help="a directory for the runs")
    parser.add_argument("flags", nargs="*", help="flags of `rookery train`, after --")
    given = parser.parse_args()
    kinds = {"alone": [False], "disturbed": [True], None: [False, True]}[given.only]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        root = given.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        for seed in range(given.first_seed, given.first_seed + given.runs):
            for disturbed in kinds:
                rows.append(train(seed, disturbed, root, given.flags))
                print(json.dumps(rows[-1]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
