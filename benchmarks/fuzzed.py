"""Whether training slows down while a fuzzer talks to its head: one line.

::

    python -m benchmarks.fuzzed --pairs 6

One run with one actor here and one that has joined over loopback; windows with and without the
fuzzer of `tests/hostile.py` in turn, the first of a pair changing. The fuzzer is one more process,
limited in its rate so that it does not simply take a core where there are two: it is measured what
its messages cost the head. Exits with 1 where less than nine tenths of the speed are left.
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
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gateway import COMMON, free_port
from benchmarks.many_hosts import HERE, START_UP_SECS, join_line
from rookery.runs.metrics import read_metrics

LEFT = 0.9
WORLD = (
    "benchmarks.burning_env:make_env", "--algo", "apex", "--apex.learning_starts", "500",
    "--apex.batch_size", "64", "--apex.steps_per_update", "32", "--places", "4",
)  # fmt: skip
SETTLING_SECS = 1.0
"""Between two windows."""


def window(run: Path, secs: float) -> float:
    """Steps/s of the next ``secs``."""
    first = newest(run)
    deadline = time.monotonic() + START_UP_SECS + secs
    while (last := newest(run))[1] - first[1] < secs:
        if time.monotonic() > deadline:
            raise SystemExit("the run makes no steps any more")
        time.sleep(0.2)
    return (last[0] - first[0]) / (last[1] - first[1])


def newest(run: Path) -> tuple[float, float]:
    """Steps and seconds of the last record."""
    record = read_metrics(run / "metrics.jsonl")[-1]
    return record["steps"], record["wall_secs"]


def fuzzed(run: Path, secs: float, address: str, rate: float, seed: int) -> tuple[float, int]:
    """Steps/s beside the fuzzer, and the messages it has sent."""
    command = [sys.executable, "-m", "tests.hostile", address, "--token-file", str(run / "token")]
    command += ["--rate", str(rate), "--secs", str(secs + 2 * SETTLING_SECS), "--seed", str(seed)]
    with subprocess.Popen([*command, "--say-begun"], stdout=subprocess.PIPE, text=True) as fuzzer:
        assert fuzzer.stdout is not None
        fuzzer.stdout.readline()  # what it imports is not what is measured
        time.sleep(SETTLING_SECS)
        found = window(run, secs)
        said, _ = fuzzer.communicate(timeout=START_UP_SECS)
    if fuzzer.returncode:
        raise SystemExit("the fuzzer has failed")
    return found, int(json.loads(said)["messages"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--secs", type=float, default=12.0, help="of each window")
    parser.add_argument("--rate", type=float, default=50.0, help="messages a second")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE)
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        run, log = Path(root) / "run", Path(root) / "head.log"
        address, words = f"127.0.0.1:{free_port()}", [sys.executable, "-m", "rookery"]
        head = [*words, "train", *WORLD, *COMMON, "--run", str(run), "--actors", "1"]
        processes = []
        stack.callback(lambda: [process.wait(60.0) for process in processes])
        stack.callback(lambda: [process.terminate() for process in processes])
        with log.open("wb") as said:
            begin = [*head, "--envs", "4", "--listen", address]
            processes.append(subprocess.Popen(begin, stdout=said, stderr=said, cwd=root))
        line = join_line(log, time.monotonic() + START_UP_SECS)
        joins = [*words, *line, "--actors", "1"]
        host = stack.enter_context((Path(root) / "host.log").open("wb"))
        processes.append(subprocess.Popen(joins, stdout=host, stderr=host, cwd=root))
        both(run)
        rates: dict[bool, list[float]] = {False: [], True: []}
        messages = 0
        for pair in range(given.pairs):
            for beside in (False, True) if pair % 2 else (True, False):
                if beside:
                    found, sent = fuzzed(run, given.secs, address, given.rate, pair)
                    messages += sent
                else:
                    found = window(run, given.secs)
                rates[beside].append(found)
                time.sleep(SETTLING_SECS)
        if any(process.poll() is not None for process in processes):
            raise SystemExit(f"somebody has ended: {log.read_text()}")
    ratios = [there / here for here, there in zip(rates[False], rates[True], strict=True)]
    left = statistics.median(ratios)
    print(
        f"{statistics.median(rates[False]):,.0f} steps/s alone, "
        f"{statistics.median(rates[True]):,.0f} beside {given.rate:g} messages/s ({messages:,} "
        f"in all): {left:.2f} of it ({min(ratios):.2f} to {max(ratios):.2f} in {given.pairs} pairs)"
    )
    raise SystemExit(left < LEFT)


def both(run: Path) -> None:
    """Until two actors act."""
    deadline = time.monotonic() + START_UP_SECS
    path = run / "metrics.jsonl"
    while not path.exists() or read_metrics(path)[-1].get("fleet/actors") != 2:
        if time.monotonic() > deadline:
            raise SystemExit("the host did not join")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
