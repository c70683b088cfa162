"""Makes the pictures of learning curves in docs/pictures: three seeds of each training.

    python docs/make/curves.py [NAME ...] [--jobs N]

It uses the commands that the pages show: ``rookery train --seeds 3`` and ``rookery plot``. Runs
stay in ``runs/curves``; those that are there are drawn and not trained again. Without a name, all
are made that take minutes; those of MinAtar take half an hour a seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
RUNS = Path(__file__).resolve().parents[2] / "runs" / "curves"


SEEDS = 3


class Picture(NamedTuple):
    """What is drawn together."""

    trainings: dict[str, str]
    """The words of each ``rookery train``, by the name of its curve."""
    flags: str = ""
    """Of ``rookery plot``."""
    takes_hours: bool = False


CURVES = {
    "cartpole": Picture({"ppo": "cartpole"}),
    "dqn-cartpole": Picture({"dqn": "dqn-cartpole"}),
    "memory": Picture(
        {
            "R2D2 with an LSTM": "r2d2-memory",
            "the same without": "r2d2-memory --policy.core none --r2d2.burn_in 0",
        },
        flags="--y rollout/info_right_turn_mean",
    ),
    "maze": Picture(
        {
            "NGU": "ngu-maze --seed 10 --stop-at none",
            "DQN": "ngu-maze --seed 10 --stop-at none --algo dqn",
        },
        flags="--y eval/return_mean --smooth 1",
    ),
    "minatar-breakout": Picture({"dqn": "dqn-minatar-breakout --time-limit 30m"}, takes_hours=True),
    "minatar-space-invaders": Picture(
        {"dqn": "dqn-minatar-space-invaders --time-limit 30m"}, takes_hours=True
    ),
}


def rookery(*words: str) -> None:
    """One command, its words shown."""
    print("rookery", *words, flush=True)
    subprocess.run([sys.executable, "-m", "rookery", *words], check=True)


def is_whole(run: Path) -> bool:
    """Whether all seeds were trained to their end."""
    told = [json.loads(path.read_text())["state"] for path in run.glob("seed-*/status.json")]
    return len(told) == SEEDS and set(told) <= {"finished", "solved"}


def make(name: str, jobs: tuple[str, ...]) -> None:
    """Train what is not there yet, and draw."""
    trainings, flags, _ = CURVES[name]
    runs = []
    for label, words in trainings.items():
        run = RUNS / name / label.replace(" ", "-")
        if not is_whole(run):
            shutil.rmtree(run, ignore_errors=True)
            rookery("train", *words.split(), "--seeds", str(SEEDS), *jobs, "--run", str(run))
        runs.append(str(run))
    labels = ("--labels", ",".join(trainings)) if len(trainings) > 1 else ()
    out = PICTURES / f"{name}-curve.png"
    rookery("plot", *runs, *labels, *flags.split(), "--out", str(out), "--force")


def main() -> None:
    """Make the pictures that were named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    quick = [name for name, picture in CURVES.items() if not picture.takes_hours]
    parser.add_argument("names", nargs="*", metavar="NAME", default=quick, help=", ".join(CURVES))
    parser.add_argument("--jobs", help="seeds that train at the same time")
    args = parser.parse_args()
    if unknown := sorted(set(args.names) - set(CURVES)):
        parser.error(f"no picture is called {unknown[0]}; there are {', '.join(CURVES)}")
    PICTURES.mkdir(exist_ok=True)
    for name in args.names:
        make(name, ("--jobs", args.jobs) if args.jobs else ())


if __name__ == "__main__":
    main()
