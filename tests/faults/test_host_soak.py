"""Half an hour in which hosts join, leave, are killed and cut off: `make test-long`.

``ROOKERY_SOAK_SECS=240`` makes it shorter, for a try. It prints what was done and what it found.
"""

from __future__ import annotations

import collections
import os
import random
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.faults.counted import Accounts, accounted
from tests.namespaces import Network, network

SECS = float(os.environ.get("ROOKERY_SOAK_SECS", "1800"))
SEED = 11
PAUSES_SECS = (3.0, 9.0)
CUTS_SECS = (2.0, 25.0)
LEASE_SECS = 8.0
SETTINGS = (
    "train", "dqn-cartpole", "--env.id", "tests.faults.counted:make_env", "--actors", "1",
    "--places", "4", "--env.kwargs", "{counts: COUNTS, step_secs: 0.005}", "--stop-at", "none",
    "--eval.episodes", "20", "--eval-every", "40000", "--log-every", "1000",
    "--supervise.max_restarts", "1000", "--hosts.lease_secs", str(LEASE_SECS),
    "--metrics.sinks", "jsonl", "--steps", "1000000000", "--plain",
)  # fmt: skip
SOLVED = 475.0
LONG_ENOUGH_SECS = 600.0
"""To learn that."""
LONGER_STEPS = 5000
FLAT = 1.1
FLAT_BYTES = 8 << 20
"""Memory that grows by no more is flat."""


def start(net: Network, host: int, words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """``rookery`` on ``host``; its pid is that of the command itself."""
    with log.open("ab") as said:
        command = net.command(sys.executable, "-m", "rookery", *words, host=host)
        env = os.environ | {"PYTHONPATH": str(p.ROOT)}
        return subprocess.Popen(command, cwd=log.parent, stdout=said, stderr=said, env=env)


class Guest:
    """A machine from which two actors join."""

    def __init__(self, net: Network, host: int, line: list[str], root: Path, run: str) -> None:
        self.net, self.host, self.line, self.root, self.run = net, host, line, root, run
        self.log = root / f"{net.names[host]}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.mend_at = 0.0
        """When the cable is put back; 0: it is in."""
        self.lives = 0
        self.said_before = 0
        """Bytes of its log when it was started last."""

    @property
    def directory(self) -> Path:
        return self.root / f"{self.run}-{self.net.names[self.host]}-{self.lives}"

    def can(self) -> list[str]:
        """What may be done to it now."""
        cable = [] if self.mend_at else ["cut"]
        if self.process is None:
            return ["join"]
        return ["leave", "kill", "kill actor", "kill actor", *cable, *cable]

    def do(self, what: str, rng: random.Random) -> None:
        """One of :meth:`can`."""
        if what == "join":
            self.lives += 1
            words = [*self.line, "--actors", "2", "--logs", str(self.directory)]
            self.said_before = self.log.stat().st_size if self.log.exists() else 0
            self.process = start(self.net, self.host, words, self.log)
        elif what == "cut":
            self.net.cut(self.host)
            self.mend_at = time.monotonic() + rng.uniform(*CUTS_SECS)
        elif what == "kill actor":
            members = p.members(self.directory)
            if members:
                p.kill(members[rng.choice(sorted(members))])
        else:
            self.end(signal.SIGTERM if what == "leave" else signal.SIGKILL)

    def end(self, number: int) -> None:
        """The host's driver gets a signal; nobody whom it has started outlives it."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(p.PATIENCE_SECS)
        starting = self.log.stat().st_size == self.said_before  # Python itself takes no signals
        fits = code == (-number if starting or number == signal.SIGKILL else 130)
        assert fits or (starting and code == 130), (code, self.log.read_text())
        p.until(lambda: not p.everyone(self.directory), "its processes to end")
        self.process = None

    def look(self) -> None:
        """It lives, whatever was done to its actors and its cable, which is put back in time."""
        if self.mend_at and time.monotonic() > self.mend_at:
            self.net.mend(self.host)
            self.mend_at = 0.0
        if self.process is not None:
            assert self.process.poll() is None, self.log.read_text()


def resident_bytes(pid: int) -> int:
    """0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0


class Memory:
    """What each process of the head has, over time."""

    def __init__(self, run: Path, driver: int) -> None:
        self.run, self.driver, self.begun = run, driver, time.monotonic()
        self.seen: dict[tuple[str, int], list[tuple[float, int]]] = collections.defaultdict(list)

    def look(self) -> None:
        for name, pid in {**p.everyone(self.run), "driver": self.driver}.items():
            if size := resident_bytes(pid):
                self.seen[name, pid].append((time.monotonic() - self.begun, size))

    def growth(self, secs: float) -> Iterator[tuple[str, float, float]]:
        """Median bytes in the second quarter of ``secs`` and in the last, of who lived in both."""
        for (name, _), samples in self.seen.items():
            quarters: list[list[int]] = [[], [], [], []]
            for moment, size in samples:
                quarters[min(int(4 * moment / secs), 3)].append(size)
            if quarters[1] and quarters[3]:
                yield name, statistics.median(quarters[1]), statistics.median(quarters[3])


@pytest.mark.long
@pytest.mark.slow
def test_hosts_come_and_go_for_half_an_hour(tmp_path: Path) -> None:
    shared, rng = p.shared_memory(), random.Random(SEED)
    with network(3) as net:
        run = tmp_path / p.own_name()
        soak(net, run, rng)
        assert not any(p.everyone(path) for path in tmp_path.iterdir() if path.is_dir())
        p.until(lambda: p.shared_memory() <= shared, "shared memory to be gone", timeout_secs=30)
    spaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert net.mark not in spaces


def soak(net: Network, run: Path, rng: random.Random) -> None:
    root, said = run.parent, run.parent / "head.log"
    (root / "counts").mkdir()
    words = [word.replace("COUNTS", str(root / "counts")) for word in SETTINGS]
    words += ["--listen", f"{net.addresses[0]}:5500", "--run", str(run)]
    head = start(net, 0, words, said)
    found = p.until(lambda: re.search(r"join by: rookery (.*) --actors", said.read_text()), "head")
    guests = [Guest(net, host, shlex.split(found[1]), root, run.name) for host in (1, 2)]
    memory = Memory(run, head.pid)
    done = disturb(head, guests, memory, rng, said)
    all_in(guests, rng, run)
    reached = p.steps(run)
    p.until(lambda: p.steps(run) > reached + 2000, f"steps beyond {reached}")
    head.send_signal(signal.SIGINT)
    assert head.wait(p.PATIENCE_SECS) == 130, said.read_text()
    lost = accounted(run, root / "counts", at_least=20_000)
    # All find the head again, and end with the run.
    steps = p.steps(run) + LONGER_STEPS
    head = start(net, 0, ["resume", str(run), "--steps", str(steps), "--plain"], said)
    for guest in guests:
        assert guest.process is not None
        assert guest.process.wait(2 * p.PATIENCE_SECS) == 0, guest.log.read_text()
        assert "the run is over" in guest.log.read_text()
    assert head.wait(p.PATIENCE_SECS) == 0, said.read_text()
    report(run, done, lost, memory)


def disturb(
    head: subprocess.Popen[bytes],
    guests: list[Guest],
    memory: Memory,
    rng: random.Random,
    said: Path,
) -> collections.Counter[str]:
    """Something happens to somebody every few seconds; how often what did."""
    done: collections.Counter[str] = collections.Counter()
    end, next_deed = time.monotonic() + SECS, 0.0
    while time.monotonic() < end:
        time.sleep(1.0)
        memory.look()
        assert head.poll() is None, said.read_text()
        for guest in guests:
            guest.look()
        if time.monotonic() > next_deed:
            guest = rng.choice(guests)
            what = rng.choice(guest.can())
            guest.do(what, rng)
            done[what] += 1
            next_deed = time.monotonic() + rng.uniform(*PAUSES_SECS)
    return done


def all_in(guests: list[Guest], rng: random.Random, run: Path) -> None:
    """Both hosts take part, with all their actors."""
    for guest in guests:
        guest.mend_at = guest.mend_at and 1.0
        guest.look()
        if guest.process is None:
            guest.do("join", rng)

    def there() -> bool:
        last = read_metrics(run / "metrics.jsonl")[-1]
        return bool(last["fleet/hosts"] == 2 and last["fleet/joined_actors"] == 4)

    p.until(there, "both hosts", timeout_secs=2 * p.PATIENCE_SECS)


def report(
    run: Path,
    done: collections.Counter[str],
    lost: Accounts,
    memory: Memory,
) -> None:
    """Print what was found, and check what is left of it."""
    returns = [r["eval/return_mean"] for r in p.records(run) if "eval/return_mean" in r]
    print(f"\n{SECS:g} s: {dict(sorted(done.items()))}")
    print(f"{lost.made:,} steps made, {lost.counted:,} counted; {lost.lives} environments lived")
    print(f"mean return of evaluations: best {max(returns)}, last {returns[-1]}")
    grown = list(memory.growth(SECS))
    for name, before, after in grown:
        print(f"{name}: {before / 2**20:.1f} MiB, and {after / 2**20:.1f} MiB at the end")
    assert {"driver", "gateway-0", "learner-0", "replay-0"} <= {name for name, _, _ in grown}
    for name, before, after in grown:
        assert after <= before * FLAT + FLAT_BYTES, name
    # It need not keep it: values of one that goes on for so long may diverge, left alone or not.
    assert SECS < LONG_ENOUGH_SECS or max(returns) >= SOLVED
