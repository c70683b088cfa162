"""Steps to solve a task over hosts: left alone and disturbed, or on one machine, on two and three.

::

    python -m benchmarks.over_hosts disturbed --runs 20   # dqn-cartpole over two hosts, both ways
    python -m benchmarks.over_hosts hosts --runs 5        # r2d2-memory and IMPALA, by hosts

The hosts are network namespaces of this machine. The head has one actor and each other host one;
all together have as many environments as the recipe says, rounded to as many for each. One machine
alone has two actors under `local`. IMPALA's CartPole sleeps a little in each step, or it would be
solved before anybody has joined; the table says from which step on all have acted.

A run that is disturbed has something done to it every few seconds, drawn from its seed: a process
is killed with SIGKILL, of the head (learner, replay, gateway, actor) or of the other host (actor,
or the command itself, which is started again), or the cable is cut for some seconds. Needs root and
iproute2 (`make system-deps`).
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.many_hosts import HERE, START_UP_SECS, join_line, start
from benchmarks.start_up import titles
from rookery.runs.metrics import read_metrics
from tests.namespaces import Network, network

PAUSES_SECS, CUTS_SECS = (6.0, 14.0), (2.0, 25.0)
MOST_KILLS = 2
"""Of one process; a run gives up when one dies four times in five minutes."""
END_SECS = 60.0


@dataclass(frozen=True)
class Job:
    """A task, and the score at which it is solved."""

    name: str
    words: tuple[str, ...]
    num_envs: int
    score: float
    batch: str = ""
    """The flag that says of how many environments a batch is, where it follows from the head's."""


JOBS = {
    "dqn-cartpole": Job("dqn-cartpole", ("dqn-cartpole",), 8, 475.0),
    "r2d2-memory": Job("r2d2-memory", ("r2d2-memory",), 16, 0.98),
    "impala": Job(
        "IMPALA, CartPole",
        (
            "benchmarks.sleeping_env:make_cartpole", "--algo", "impala", "--formation", "async",
            "--lr", "2e-3", "--steps", "600000", "--stop-at", "475", "--eval-every", "10000",
            "--eval.episodes", "100",
        ),
        16,
        475.0,
        "--async.batch_envs",
    ),
}  # fmt: skip


@dataclass
class Hosts:
    """The head and the others, while a run lasts."""

    net: Network
    run: Path
    num: int
    line: list[str] = field(default_factory=list)
    joined: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    mend_at: dict[int, float] = field(default_factory=dict)
    done: collections.Counter[str] = field(default_factory=collections.Counter)

    def join(self, host: int) -> None:
        """An actor of ``host`` takes part."""
        log = self.run.with_name(f"{self.run.name}-{self.net.names[host]}.log")
        words = [*self.line, "--actors", "1", "--logs", str(self.logs(host))]
        self.joined[host] = start(self.net, host, words, log)

    def logs(self, host: int) -> Path:
        return self.run.with_name(f"{self.run.name}-{self.net.names[host]}")

    def victims(self) -> dict[str, int]:
        """Processes that may be killed."""
        roles = ("learner", "replay", "gateway", "actor")
        found = {f"head's {k}": v for k, v in titles(self.run).items() if k.startswith(roles)}
        for host, process in self.joined.items():
            actors = titles(self.logs(host)).items()
            found |= {f"host {host}'s {k}": v for k, v in actors if k.startswith("actor")}
            found[f"host {host}"] = process.pid
        return {name: pid for name, pid in found.items() if self.done[name] < MOST_KILLS}

    def disturb(self, rng: random.Random) -> None:
        """Kill somebody, or cut a cable."""
        host = rng.randrange(1, self.num)
        if rng.random() < 0.4:
            if host not in self.mend_at:
                self.net.cut(host)
                self.mend_at[host] = time.monotonic() + rng.uniform(*CUTS_SECS)
                self.done["cut"] += 1
            return
        victims = self.victims()
        if victims:
            name = rng.choice(sorted(victims))
            os.kill(victims[name], 9)
            self.done[name] += 1

    def look(self) -> None:
        """Put cables back in time, and start again who was killed."""
        for host, moment in list(self.mend_at.items()):
            if time.monotonic() > moment:
                self.net.mend(host)
                del self.mend_at[host]
        for host, process in self.joined.items():
            if process.poll() not in (None, 0):
                self.join(host)

    def end(self) -> None:
        """All of them."""
        for host in self.mend_at:
            self.net.mend(host)
        for process in self.joined.values():
            try:
                process.wait(END_SECS)
            except subprocess.TimeoutExpired:
                process.terminate()
                process.wait(END_SECS)


def train(job: Job, num_hosts: int, seed: int, disturbed: bool, root: Path) -> dict[str, Any]:
    """One run, and how it went."""
    kind = "disturbed" if disturbed else "alone"
    run = root / f"{job.name.split()[0].strip(',').lower()}-{num_hosts}-{seed}-{kind}"
    log = run.with_suffix(".log")
    with network(num_hosts) as net:
        hosts = Hosts(net, run, num_hosts)
        words = ["train", *job.words, "--engine", "local", "--seed", str(seed), "--run", str(run)]
        share = round(job.num_envs / num_hosts)
        words += ["--envs", str(share), "--actors", "1" if num_hosts > 1 else "2", "--plain"]
        words += [job.batch, str(share * num_hosts)] if job.batch else []
        words += ["--listen", f"{net.addresses[0]}:5500"] if num_hosts > 1 else []
        head = start(net, 0, words, log)
        if num_hosts > 1:
            hosts.line = join_line(log, time.monotonic() + START_UP_SECS)
            for host in range(1, num_hosts):
                hosts.join(host)
        rng = random.Random(seed)
        next_deed = time.monotonic() + rng.uniform(*PAUSES_SECS)
        while head.poll() is None:
            time.sleep(0.5)
            hosts.look()
            if disturbed and time.monotonic() > next_deed:
                hosts.disturb(rng)
                next_deed = time.monotonic() + rng.uniform(*PAUSES_SECS)
        hosts.end()
    records = read_metrics(run / "metrics.jsonl")
    judged = [each["eval/return_mean"] for each in records if "eval/return_mean" in each]
    whole = [each for each in records if each.get("fleet/actors") == max(num_hosts, 2)]
    return {
        "job": job.name,
        "hosts": num_hosts,
        "seed": seed,
        "kind": kind,
        "code": head.returncode,
        "solved": any(each >= job.score for each in judged),
        "best": max(judged, default=0.0),
        "steps": records[-1]["steps"],
        "secs": records[-1]["wall_secs"],
        "all_from": next((each["steps"] for each in whole), None),
        "done": dict(hosts.done),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each kind of run."""
    lines = [
        "| job | hosts | runs | solved | steps to solve, median | range | all act from step | "
        "kills | cuts |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    kinds: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        kinds.setdefault((row["job"], row["hosts"], row["kind"]), []).append(row)
    for (job, num_hosts, kind), some in kinds.items():
        steps = sorted(row["steps"] for row in some if row["solved"])
        median = f"{statistics.median(steps):,.0f}" if steps else ""
        said = f"{median} | {steps[0]:,} to {steps[-1]:,}" if steps else " | "
        begun = [row["all_from"] for row in some if row["all_from"] is not None]
        said += f" | {statistics.median(begun):,.0f}" if begun else " | never"
        deeds = sum((collections.Counter(row["done"]) for row in some), collections.Counter[str]())
        cuts = deeds.pop("cut", 0)
        lines.append(
            f"| {job} | {num_hosts} | {len(some)} {kind} | {len(steps)} | {said} | "
            f"{deeds.total()} | {cuts} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("disturbed", "hosts"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--only", choices=tuple(JOBS), nargs="*")
    parser.add_argument("--num-hosts", type=int, nargs="*")
    parser.add_argument("--kinds", choices=("alone", "disturbed"), nargs="*")
    parser.add_argument("--keep", type=Path, help="a directory for the runs")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE)
    over = given.what == "hosts"
    jobs = given.only or (["r2d2-memory", "impala"] if over else ["dqn-cartpole"])
    kinds = given.kinds or (["alone"] if over else ["alone", "disturbed"])
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        root = given.keep or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        for seed in range(given.first_seed, given.first_seed + given.runs):
            for job in jobs:
                for num_hosts in given.num_hosts or ([1, 2, 3] if over else [2]):
                    for kind in kinds:
                        rows.append(train(JOBS[job], num_hosts, seed, kind == "disturbed", root))
                        print(json.dumps(rows[-1]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
