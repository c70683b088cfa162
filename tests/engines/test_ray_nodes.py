"""Engine ``ray`` on nodes with networks of their own, started by `ray start`, and as a Ray job."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.engines.test_hosts import REPLAY, SLOW_STEPS, WORLD
from tests.faults import processes as p
from tests.namespaces import Network, network

pytest.importorskip("ray")
pytestmark = pytest.mark.long

PORT = "6399"
SCORE = 475
HIDE = 'mount -t tmpfs none "$0"; exec "$@"'
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
ENV = os.environ | TOKEN | {"PYTHONPATH": str(p.ROOT)}
RAY = str(Path(sys.executable).parent / "ray")


class Nodes:
    """A Ray cluster over hosts that are network namespaces."""

    def __init__(self, hosts: Network, directory: Path, sockets: str) -> None:
        """``sockets``: a directory with a short name, as those of sockets have to be."""
        self.hosts, self.directory, self.sockets = hosts, directory, sockets
        self.address = f"{hosts.addresses[0]}:{PORT}"
        self.dashboard: tuple[str, ...] = ("--include-dashboard=false",)
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, host: int, resources: str = "{}", hidden: Path | None = None) -> None:
        """A node with two CPUs; ``hidden`` is a directory of which it sees nothing."""
        head = ("--head", "--port", PORT, *self.dashboard)
        words = [RAY, "start", *(head if host == 0 else ("--address", self.address)), "--block"]
        words += ["--node-ip-address", self.hosts.addresses[host], "--num-cpus", "2"]
        words += ["--resources", resources, "--disable-usage-stats"]
        if host == 0:
            words += ["--temp-dir", self.sockets]
        if hidden is not None:
            words = ["sh", "-c", HIDE, str(hidden), *words]
        log = (self.directory / f"{self.hosts.names[host]}.log").open("w")
        command = self.hosts.command(*words, host=host)
        process = subprocess.Popen(
            command, cwd=self.directory, stdout=log, stderr=log, env=ENV, start_new_session=True
        )
        self.processes.append(process)
        said = Path(log.name)
        up = "Ray runtime started"
        p.until(lambda: up in said.read_text() or process.poll() is not None, "Ray")
        assert process.poll() is None, said.read_text()

    def train(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        """The driver, on the first host."""
        command = self.hosts.command(sys.executable, "-m", "rookery", *words, "--plain", host=0)
        env = ENV | {"RAY_ADDRESS": self.address}
        process = subprocess.Popen(command, cwd=p.ROOT, stderr=log.open("w"), env=env)
        self.processes.append(process)
        return process

    def lose(self, host: int) -> None:
        """Whatever runs there is gone at once."""
        words = ["ip", "netns", "pids", self.hosts.space(host)]
        for pid in subprocess.run(words, capture_output=True, text=True, check=True).stdout.split():
            os.kill(int(pid), signal.SIGKILL)


@contextmanager
def cluster(num: int, directory: Path) -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as short, network(num) as hosts:
        nodes = Nodes(hosts, directory, short)
        try:
            yield nodes
        finally:
            for process in nodes.processes:
                process.kill()
                process.wait()


def hears(log: Path, words: str, times: int = 1, secs: float = p.PATIENCE_SECS) -> str:
    """What follows ``words`` in the line that has them last."""
    deadline = time.monotonic() + secs
    while len(found := re.findall(f"{words}(.*)", log.read_text())) < times:
        assert time.monotonic() < deadline, f"no '{words}' in\n{log.read_text()}"
        time.sleep(0.1)
    return str(found[-1])


def test_the_heads_node_is_lost_and_the_run_reaches_its_score(tmp_path: Path) -> None:
    said, run = tmp_path / "driver.log", tmp_path / p.own_name()
    with cluster(3, tmp_path) as nodes:
        nodes.start(0)
        for host in (1, 2):
            nodes.start(host, '{"heads": 1}')
        words = ("cartpole", "--engine", "ray", "--actors", "2", "--run", str(run))
        heads = ("--ray.head_resources", "{heads: 0.5}", "--save-every", "4000")
        driver = nodes.train(said, "train", *words, *heads)
        where = hears(said, "head on node-")
        hears(said, "joined with")
        p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
        nodes.lose("abc".index(where[0]))
        before = load_checkpoint(run, "latest").steps
        hears(said, "the head goes on at node-")
        p.until(lambda: p.steps(run) > before, said.read_text())
        assert driver.wait(300) == 0, said.read_text()
    assert float(hears(said, "evaluation ").split()[0]) >= SCORE, said.read_text()
    steps = [record["steps"] for record in read_metrics(run / "metrics.jsonl")]
    assert steps == sorted(steps)


def test_hosts_need_no_storage_and_the_head_does(tmp_path: Path) -> None:
    said, shared = tmp_path / "driver.log", tmp_path / "shared"
    shared.mkdir()
    with cluster(2, tmp_path) as nodes:
        nodes.start(0, '{"here": 1}')
        nodes.start(1, '{"there": 1}', hidden=shared)
        words = ("train", WORLD, "--engine", "ray", *REPLAY, *SLOW_STEPS, "--actors", "1")
        head, host = "--ray.head_resources", "--ray.host_resources"
        flags = (*words, head, "{here: 0.1}", host, "{there: 0.1}", "--steps", "2000")
        driver = nodes.train(said, *flags, "--run", str(shared / "one"))
        assert driver.wait(p.PATIENCE_SECS) == 0, said.read_text()
        assert "host node-b joined with 1 actors" in said.read_text()
        assert (tmp_path / "runs" / "one-host-0" / "logs" / "actor-0.log").exists()
        flags = (*words, head, "{there: 0.1}", host, "{here: 0.1}", "--steps", "2000")
        driver = nodes.train(said, *flags, "--run", str(shared / "two"))
        assert driver.wait(p.PATIENCE_SECS) == 2, said.read_text()
    expected = (
        r"rookery: node node-b \(198.18.0.2\) does not see \S+/shared/two of node-a "
        r"\(198.18.0.1\): put --run on storage that all nodes share, or keep the head on that "
        r"node, as by --ray.head_resources '\{\"node:198.18.0.1\": 0.001\}'\n$"
    )
    assert re.search(expected, said.read_text()), said.read_text()


def test_a_run_is_a_ray_job(tmp_path: Path) -> None:
    """Its working directory has the environment; RAY_ADDRESS comes from Ray."""
    work, run = tmp_path / "work", tmp_path / "run"
    work.mkdir()
    (work / "my_env.py").write_text("from tests.faults.fault_worlds import Plain as make\n")
    with cluster(1, tmp_path) as nodes:
        at = f"{nodes.hosts.addresses[0]}:8265"
        nodes.dashboard = ("--include-dashboard=true", "--dashboard-host", at.partition(":")[0])
        nodes.start(0)
        train = ["-m", "rookery", "train", "my_env:make", "--engine", "ray", *REPLAY]
        train += ["--actors", "1", "--steps", "1000", "--plain", "--run", str(run)]
        words = [RAY, "job", "submit", "--address", f"http://{at}", "--working-dir", str(work)]
        done = subprocess.run(
            nodes.hosts.command(*words, "--", sys.executable, *train, host=0),
            capture_output=True,
            text=True,
            timeout=200,
            env=ENV,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "finished: 1000 steps reached" in done.stdout
    assert "host node-a joined with 1 actors" in done.stdout
