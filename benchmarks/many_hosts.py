"""Actors spread over four hosts, on an environment that sleeps 20 ms a step: how close to linear.

::

    python -m benchmarks.many_hosts                              # the table of docs/benchmarks.md
    python -m benchmarks.many_hosts --actors 1 8 32 --only replay --repeats 1

The hosts are network namespaces of this machine, so they share its cores. The head is on the first
and has a quarter of the actors; the others join. Each actor has one environment. Linear is what one
actor alone makes, times their number. Needs root and iproute2 (`make system-deps`).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rookery.runs.metrics import read_metrics
from tests.namespaces import Network, network

HERE = Path(__file__).resolve().parents[1]
NUM_HOSTS = 4
COMMON = (
    "--eval.episodes", "0", "--stop-at", "none", "--policy.hidden", "[16]", "--log-every", "100",
    "--save-every", "100000000", "--metrics.sinks", "jsonl", "--steps", "100000000", "--plain",
)  # fmt: skip
FORMATIONS = {
    "replay": (
        "--algo", "apex", "--apex.batch_size", "32", "--apex.learning_starts", "200",
        "--apex.capacity_steps", "20000", "--apex.steps_per_update", "32",
    ),
    "async": ("--algo", "impala", "--formation", "async", "--impala.rollout_steps", "20"),
}  # fmt: skip
START_UP_SECS = 120.0
ACTING = ("fleet/actors", "fleet/workers")


def start(net: Network, host: int, words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """``rookery`` on ``host``."""
    command = net.command(sys.executable, "-m", "rookery", *words, host=host)
    with log.open("wb") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, cwd=log.parent)


def join_line(log: Path, deadline: float) -> list[str]:
    """What the head tells others to type, without the number of actors."""
    while time.monotonic() < deadline:
        found = re.search(r"others join by: rookery (.*) --actors", log.read_text())
        if found is not None:
            return found[1].split()
        time.sleep(0.1)
    raise SystemExit(f"the head did not begin: {log.read_text()}")


def rate(net: Network, formation: str, actors: int, secs: float) -> float:
    """Steps/s of the whole run once all act."""
    shares = [actors // NUM_HOSTS + (host < actors % NUM_HOSTS) for host in range(NUM_HOSTS)]
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        run, log = Path(root) / "run", Path(root) / "head.log"
        words = ["train", "benchmarks.sleeping_env:make_env", *FORMATIONS[formation], *COMMON]
        words += ["--actors", str(shares[0]), "--envs", str(shares[0]), "--run", str(run)]
        words += ["--listen", f"{net.addresses[0]}:5500"]
        processes = [start(net, 0, words, log)]
        stack.callback(lambda: [each.terminate() for each in processes])
        line = join_line(log, time.monotonic() + START_UP_SECS)
        for host, share in list(enumerate(shares))[1:]:
            if share:
                joins = [*line, "--actors", str(share)]
                processes.append(start(net, host, joins, Path(root) / f"host-{host}.log"))
        found = settled(run, actors, secs, log)
        for each in processes:
            each.terminate()
        for each in processes:
            each.wait(60.0)
    return found


def settled(run: Path, actors: int, secs: float, log: Path) -> float:
    """Steps/s over ``secs``, from two seconds after all ``actors``, or workers, act."""
    deadline = time.monotonic() + START_UP_SECS + secs
    path = run / "metrics.jsonl"
    while time.monotonic() < deadline:
        records = read_metrics(path) if path.exists() else []
        whole = [each for each in records if actors in map(each.get, ACTING)]
        whole = [each for each in whole if each["wall_secs"] > whole[0]["wall_secs"] + 2]
        if whole and (lasted := whole[-1]["wall_secs"] - whole[0]["wall_secs"]) >= secs:
            return float(whole[-1]["steps"] - whole[0]["steps"]) / lasted
        time.sleep(0.5)
    raise SystemExit(f"{actors} actors did not act for {secs:g} s: {log.read_text()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--secs", type=float, default=12.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=tuple(FORMATIONS), nargs="*", default=list(FORMATIONS))
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE)
    print("| formation | actors | steps/s | of linear | range |\n|---|---|---|---|---|")
    with network(NUM_HOSTS) as net:
        for formation in given.only:
            alone = 0.0
            for actors in given.actors:
                rates = [rate(net, formation, actors, given.secs) for _ in range(given.repeats)]
                middle = statistics.median(rates)
                alone = alone or middle / actors
                print(
                    f"| {formation} | {actors} | {middle:,.0f} | {middle / alone / actors:.0%} | "
                    f"{min(rates):,.0f} to {max(rates):,.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
