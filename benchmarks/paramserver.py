"""Parameter servers: how they scale, what one slow worker costs, and what they cost themselves.

::

    python -m benchmarks.paramserver scaling     # an environment that sleeps 20 ms, 1 to 16 workers
    python -m benchmarks.paramserver slowed      # 16 workers, one of them ten times as slow
    python -m benchmarks.paramserver cost        # Pong, against allreduce in turn

Each worker has one environment that sleeps, and learns from gradients of 10 steps. Pong has the
recipe's settings in either formation: two workers, the same batches. Nothing else should run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.central import HERE, rate_of

TASK = (
    "--policy.hidden", "[16]", "--engine", "local", "--algo", "a2c", "--a2c.rollout_steps", "10",
)  # fmt: skip
SERVERS = ("--formation", "paramserver", "--servers", "2")
WAYS = {
    "sync, all gradients": (*SERVERS,),
    "sync, one spare worker": (*SERVERS, "--paramserver.num_gradients", "{spare}"),
    "async": (*SERVERS, "--paramserver.mode", "async"),
}


def flags_of(way: str, workers: int) -> tuple[str, ...]:
    """Flags of a run with so many workers."""
    spare = str(max(workers - 1, 1))
    words = [word.format(spare=spare) for word in WAYS[way]]
    return (*TASK, *words, "--workers", str(workers), "--envs", str(workers))


def scaling(rounds: int, secs: float) -> None:
    """Steps/s of 1 to 16 workers."""
    print("| mode | workers | steps/s | of linear |\n|---|---|---|---|")
    for way in ("sync, all gradients", "async"):
        alone = 0.0
        for workers in (1, 2, 4, 8, 16):
            words = ("benchmarks.sleeping_env:make_env", *flags_of(way, workers))
            rate = statistics.median(rate_of(words, workers, secs) for _ in range(rounds))
            alone = alone or rate
            print(f"| {way} | {workers} | {rate:,.0f} | {rate / alone / workers:.0%} |", flush=True)


def slowed(rounds: int, secs: float) -> None:
    """Steps/s of 16 workers of equal speed, and with one of them slowed."""
    print("| 16 workers | steps/s | one ten times as slow | left |\n|---|---|---|---|")
    for way in WAYS:
        equal, uneven = [], []
        for _ in range(rounds):
            words = flags_of(way, 16)
            equal.append(rate_of(("benchmarks.sleeping_env:make_env", *words), 16, secs))
            with tempfile.TemporaryDirectory() as root:
                claim = ("--env.kwargs", f"{{claim: {Path(root) / 'claimed'}}}")
                task = ("benchmarks.sleeping_env:OneSlowEnv", *words, *claim)
                uneven.append(rate_of(task, 16, secs))
        left = statistics.median(b / a for a, b in zip(equal, uneven, strict=True))
        even, odd = statistics.median(equal), statistics.median(uneven)
        print(f"| {way} | {even:,.0f} | {odd:,.0f} | {left:.0%} |", flush=True)


def cost(rounds: int, secs: float) -> None:
    """Steps/s on Pong, pair by pair."""
    rates: dict[str, list[float]] = {"allreduce": [], "paramserver": []}
    for number in range(rounds):
        for formation in sorted(rates, reverse=bool(number % 2)):
            words = ("pong", "--formation", formation, "--engine", "local")
            rates[formation].append(rate_of(words, 2, secs))
    ratios = [b / a for a, b in zip(rates["allreduce"], rates["paramserver"], strict=True)]
    print("| formation | steps/s | of allreduce |\n|---|---|---|")
    for formation, found in rates.items():
        said = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        said = said if formation == "paramserver" else ""
        print(f"| {formation} | {statistics.median(found):,.0f} | {said} |")


PARTS = {"scaling": scaling, "slowed": slowed, "cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=10.0, help="of each measurement")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE)
    PARTS[given.part](given.rounds, given.secs)


if __name__ == "__main__":
    main()
