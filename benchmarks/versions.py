"""Steps/s of this checkout against another one, pair by pair: what a change of the inside costs.

::

    git worktree add ../before REVISION
    python benchmarks/versions.py ../before --pairs 5

Each job is trained for some seconds by either checkout in turn, the first of a pair changing, with
the recipes of its own. A ratio is of one pair; the table has the median ratio and its range.
Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
BURNING = "benchmarks.burning_env:make_env"
WHOLE = "{whole}"
"""In flags: this many environments, which an older checkout divides by its two actors."""
JOBS: dict[str, tuple[str, ...]] = {
    "CartPole, inline": ("cartpole", "--engine", "inline"),
    "Snake, allreduce": ("snake",),
    "Pong, allreduce": ("pong",),
    "Pong, async": ("pong", "--formation", "async"),
    "DQN on Pong, local": ("dqn-pong", "--dqn.learning_starts", "1000"),
    "0.2 ms a step, sync, 2 actors": (
        BURNING, "--formation", "sync", "--engine", "local", "--actors", "2", "--envs", WHOLE,
        "--ppo.num_epochs", "1",
    ),
}  # fmt: skip
COMMON = (
    "--steps", "1000000000000", "--stop-at", "none", "--eval.episodes", "0", "--eval-every", "none",
    "--log-every", "200", "--metrics.sinks", "jsonl", "--save-every", "1000000000000", "--quiet",
)  # fmt: skip
SKIPPED_SECS = 3.0
"""At the beginning of a run, which does not count."""
START_UP = "start-up of local, s"


def flags_of(job: str, tree: Path) -> list[str]:
    """What ``tree`` is asked to train: environments are of the whole run, or of each actor."""
    whole = (tree / "rookery" / "formations").is_dir()
    return [word if word != WHOLE else ("16" if whole else "8") for word in JOBS[job]]


def train(tree: Path, words: list[str], run: Path, secs: float) -> None:
    """One training by the package in ``tree``."""
    command = [sys.executable, "-m", "rookery", "train", *words, *COMMON]
    done = subprocess.run(
        [*command, "--time-limit", f"{secs:g}s", "--run", str(run)],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{tree}: {' '.join(words)}: {done.stderr.strip()}")


def rate(tree: Path, job: str, secs: float) -> float:
    """Steps a second after the beginning."""
    with tempfile.TemporaryDirectory() as root:
        run = Path(root) / "run"
        train(tree, flags_of(job, tree), run, secs)
        lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    first = next(each for each in records if each["wall_secs"] > SKIPPED_SECS and each["updates"])
    last = records[-1]
    if last is first:
        raise SystemExit(f"{job}: one record in {secs:g} s; give more --secs")
    return float(last["steps"] - first["steps"]) / (last["wall_secs"] - first["wall_secs"])


def start_up(tree: Path) -> float:
    """Seconds until a short run under ``local`` has ended; less is better."""
    words = ["CartPole-v1", "--engine", "local", "--actors", "2", "--envs", "4", "--quiet"]
    words += ["--steps", "200", "--eval.episodes", "0", "--ppo.rollout_steps", "8"]
    words += ["--ppo.num_minibatches", "1"]
    with tempfile.TemporaryDirectory() as root:
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "rookery", "train", *words, "--run", str(Path(root) / "run")],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": str(tree)},
            check=True,
            capture_output=True,
        )
        return time.monotonic() - begun


def compare(job: str, before: Path, pairs: int, secs: float) -> None:
    """Print one row."""
    ratios, rates = [], {before: [], HERE: []}
    for pair in range(pairs):
        for tree in (before, HERE) if pair % 2 else (HERE, before):
            found = start_up(tree) if job == START_UP else rate(tree, job, secs)
            rates[tree].append(found)
        ratios.append(rates[HERE][-1] / rates[before][-1])
    middle = {tree: statistics.median(some) for tree, some in rates.items()}
    print(
        f"| {job} | {middle[before]:,.4g} | {middle[HERE]:,.4g} | {statistics.median(ratios):.3f} "
        f"| {min(ratios):.3f} to {max(ratios):.3f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--secs", type=float, default=15.0, help="of each training")
    parser.add_argument("--only", nargs="*", help="parts of the jobs' names")
    given = parser.parse_args()
    jobs = [*JOBS, START_UP]
    if given.only:
        jobs = [job for job in jobs if any(word in job for word in given.only)]
    print(f"| job | before | now | ratio | of {given.pairs} pairs |\n|---|---|---|---|---|")
    for job in jobs:
        compare(job, given.before.resolve(), given.pairs, given.secs)


if __name__ == "__main__":
    main()
