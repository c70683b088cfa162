"""BipedalWalker-v3, PPO at like work: steps/s of ours and of Stable-Baselines3, interleaved.

    python benchmarks/bipedal.py [--secs 60] [--repeats 3] [--only NAME ...]

All train two 64x64 tanh networks with 4 epochs and minibatches of 1,024 on batches of 8,192 steps.
Ours: `rookery train bipedal`, two workers: with envpool; without it, which steps gymnasium's
walkers many at once; and with gymnasium's own `step`, one after the other.
Stable-Baselines3: its DummyVecEnv with many and with few environments and its SubprocVecEnv with a
process for each core, whichever is fastest.
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
PEERS = HERE.parent / ".venv-peers" / "bin" / "python"
OURS = {
    "Rookery, envpool": "envpool",
    "Rookery, without envpool": "native",
    "Rookery, gymnasium one by one": "serial",
}
THEIRS = {
    f"Stable-Baselines3, {cls}, {num_envs} environments": (kind, num_envs)
    for cls, kind, num_envs in (
        ("DummyVecEnv", "dummy", 64),
        ("DummyVecEnv", "dummy", 8),
        ("SubprocVecEnv", "subproc", 2),
    )
}


def ours(backend: str, secs: float) -> float:
    """Steps/s between the first and the last record: start-up is not training."""
    with tempfile.TemporaryDirectory() as root:
        run = Path(root) / "run"
        subprocess.run(
            [
                sys.executable, "-m", "rookery", "train", "bipedal", "--env.backend", backend,
                "--time-limit", str(secs), "--eval.every_steps", "none", "--eval.episodes", "0",
                "--stop-at", "none", "--log-every", "8192", "--run", str(run), "--quiet",
            ],
            check=True,
        )  # fmt: skip
        lines = (run / "metrics.jsonl").read_text().splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    return float((last["steps"] - first["steps"]) / (last["wall_secs"] - first["wall_secs"]))


def theirs(kind: str, num_envs: int, secs: float) -> float:
    words = [str(PEERS), str(HERE / "bipedal_sb3.py"), kind, str(num_envs), str(secs)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["steps_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="rows that hold one of these")
    args = parser.parse_args()
    names = [
        name
        for name in (*OURS, *THEIRS)
        if not args.only or any(part.lower() in name.lower() for part in args.only)
    ]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(args.repeats):
        for name in names:
            if name in OURS:
                rates[name].append(ours(OURS[name], args.secs))
            else:
                rates[name].append(theirs(*THEIRS[name], args.secs))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    best = max((medians[name] for name in THEIRS if name in medians), default=float("nan"))
    print("| system | env steps/s (median) | runs | against the best of Stable-Baselines3 |")
    print("|---|---|---|---|")
    for name, values in rates.items():
        runs = ", ".join(f"{value:,.0f}" for value in values)
        print(f"| {name} | {medians[name]:,.0f} | {runs} | {medians[name] / best:.1f} |")


if __name__ == "__main__":
    main()
