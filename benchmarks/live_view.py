"""What the live view costs: steps/s of CartPole with it, on a pseudo-terminal, and with `--quiet`.

    python benchmarks/live_view.py

Both train PPO with the recipe's settings and one seed, interleaved and in turn first, so that a
machine that slows down slows both. The ratio is taken for each pair; 1 means that the view is free.

On a machine whose speed wavers by more than the view can cost, the second figure says more: the CPU
time of all threads but the one that trains, as a share of the latter's. Drawing can take no more
than that from training, and only if there is no second core.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 120, 30
VARIANTS: dict[str, list[str]] = {"live": [], "quiet": ["--quiet"]}


def measure(variant: str, steps: int, run: Path) -> tuple[float, float, int]:
    """Steps/s between the first and the last record, CPU beside training, pictures drawn."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [
            sys.executable, "-m", "rookery", "train", "cartpole", "--steps", str(steps),
            "--stop-at", "none", "--eval.episodes", "0", "--run", str(run), *VARIANTS[variant],
        ],
        stderr=terminal,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "LANG": "C.UTF-8"},
    )  # fmt: skip
    os.close(terminal)
    shown, share = watch(master, process.pid)
    if process.wait() != 0:
        raise SystemExit(shown.decode("utf-8", "replace"))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, last = records[0], records[-1]
    rate = (last["steps"] - first["steps"]) / (last["wall_secs"] - first["wall_secs"])
    return rate, share, shown.count(b"\x1b[?25h")


def watch(master: int, pid: int) -> tuple[bytes, float]:
    """What the command shows until it ends, and the CPU share of its other threads."""
    shown, share = b"", 0.0
    while True:
        share = other_threads(pid, share)
        if not select.select([master], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(master, 1 << 16)
        except OSError:  # nobody has the other end open any more
            data = b""
        if not data:
            os.close(master)
            return shown, share
        shown += data


def other_threads(pid: int, before: float) -> float:
    """CPU ticks of all threads but the main one, by those of the main one."""
    try:
        ticks = {int(task.name): used(task) for task in Path(f"/proc/{pid}/task").iterdir()}
    except OSError:  # it has just ended
        return before
    main = ticks.pop(pid, 0)
    return sum(ticks.values()) / main if main else before


def used(task: Path) -> int:
    """User and system time of a thread."""
    values = (task / "stat").read_text().rpartition(")")[2].split()
    return int(values[11]) + int(values[12])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    rates: dict[str, list[float]] = {name: [] for name in VARIANTS}
    shares: dict[str, list[float]] = {name: [] for name in VARIANTS}
    pictures = []
    with tempfile.TemporaryDirectory() as root:
        for number in range(args.repeats):
            order = list(VARIANTS) if number % 2 == 0 else list(VARIANTS)[::-1]
            for name in order:
                rate, share, drawn = measure(name, args.steps, Path(root) / f"{name}-{number}")
                rates[name].append(rate)
                shares[name].append(share)
                pictures += [drawn] if name == "live" else []
    print("| display | env steps/s (median) | runs | CPU of other threads (median) |")
    print("|---|---|---|---|")
    for name, values in rates.items():
        runs = ", ".join(f"{value:,.0f}" for value in values)
        beside = f"{statistics.median(shares[name]):.2%}"
        print(f"| {name} | {statistics.median(values):,.0f} | {runs} | {beside} |")
    ratios = [live / quiet for live, quiet in zip(rates["live"], rates["quiet"], strict=True)]
    listed = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"\nlive / quiet: {statistics.median(ratios):.3f} (median of {listed})")
    print(f"pictures drawn in a run: {statistics.median(pictures):.0f} (median)")


if __name__ == "__main__":
    main()
