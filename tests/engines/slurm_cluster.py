"""A real Slurm cluster on this one host: munged, slurmctld and a slurmd for each node.

::

    with slurm_cluster(num_nodes=2) as cluster:
        job = cluster.start("srun", "-N", "2", "-n", "2", "hostname")

Everything it writes is in a directory of its own under the temporary directory, every port is free
on loopback, and it runs as whoever runs the tests. Several clusters may live at once.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.needs import need

READY_SECS = 60.0
END_SECS = 10.0
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "squeue", "sinfo")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class SlurmCluster:
    """A running cluster; ``environment`` is what its commands need."""

    def __init__(self, directory: Path, num_nodes: int, cpus: int, more: list[str]) -> None:
        self.directory = directory
        self.nodes = [f"n{number}" for number in range(1, num_nodes + 1)]
        self.conf = directory / "slurm.conf"
        self.conf.write_text(_settings(directory, self.nodes, cpus) + "\n".join([*more, ""]))
        without = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "PMI"))}
        self.environment = without | {"SLURM_CONF": str(self.conf), "PATH": PATH}

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """A command of the cluster in the background; its output and errors are one stream."""
        environment = self.environment | options.pop("env", {})
        settings: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "stdin": subprocess.DEVNULL,
            "text": True,
            "start_new_session": True,
        }
        return subprocess.Popen(words, env=environment, **(settings | options))

    def run(self, *words: str, timeout_secs: float = 90.0, **options: Any) -> tuple[int, str]:
        """Exit code and everything said by a command of the cluster."""
        process = self.start(*words, **options)
        try:
            said, _ = process.communicate(timeout=timeout_secs)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(
                f"{words[0]}: no end after {timeout_secs:g} s\n{self.logs()}"
            ) from None
        return process.returncode, said

    def logs(self) -> str:
        """The last lines of every daemon's log, for a test that fails."""
        parts = []
        for path in sorted(self.directory.glob("*.log")):
            lines = path.read_text(errors="replace").splitlines()[-20:]
            parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def wait_until_ready(self) -> None:
        """Until every node is idle."""
        deadline = time.monotonic() + READY_SECS
        while time.monotonic() < deadline:
            code, said = self.run("sinfo", "-h", "-N", "-o", "%N %t", timeout_secs=30)
            if code == 0 and said.split().count("idle") == len(self.nodes):
                return
            time.sleep(0.2)
        raise AssertionError(f"Slurm was not ready within {READY_SECS:g} s\n{self.logs()}")

    def cancel_all(self) -> None:
        """End every job, and with them the processes that carry them."""
        self.run("scancel", "--signal=KILL", "--user", getpass.getuser(), timeout_secs=30)
        self.run("scancel", "--user", getpass.getuser(), timeout_secs=30)
        deadline = time.monotonic() + END_SECS
        while time.monotonic() < deadline:
            if not self.run("squeue", "-h", timeout_secs=30)[1].strip():
                return
            time.sleep(0.1)

    def kill_rest(self) -> None:
        """What no daemon ended: whatever was started with this cluster's settings."""
        _kill([pid for pid, _, _ in self._processes()])

    def kill_node(self, node: str) -> None:
        """The daemon of ``node`` and what runs there, those first who would tell how it ended."""
        daemon, own = f"\0-N\0{node}\0".encode(), f"SLURMD_NODENAME={node}".encode()
        everyone = list(self._processes())
        daemons = [pid for pid, words, _ in everyone if daemon in words]
        tasks = [pid for pid, _, variables in everyone if own in variables]
        parents = {_parent(pid) for pid in tasks}
        steps = [p for p, words, _ in everyone if p in parents and words.startswith(b"slurmstepd")]
        _kill([*daemons, *steps, *tasks])

    def _processes(self) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Number, words and variables of everything that was started with this cluster's
        settings."""
        mark = f"SLURM_CONF={self.conf}".encode()
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes()
            except OSError:  # it ended meanwhile, or is another's
                continue
            if entry.name.isdigit() and mark in variables:
                yield int(entry.name), words, variables


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


@contextmanager
def slurm_cluster(
    num_nodes: int = 2, cpus: int = 4, more: list[str] | None = None
) -> Iterator[SlurmCluster]:
    """Start a cluster whose nodes have ``cpus`` each, whatever this host has; end it afterwards.

    ``more`` are further lines of its slurm.conf.
    """
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    need(not missing, f"{', '.join(missing)} not found; `make system-deps` installs Slurm")
    need(os.geteuid() == 0, "Slurm's daemons need root")
    directory = Path(tempfile.mkdtemp(prefix="slurm-"))
    directory.chmod(0o755)  # munge insists that its socket can be reached
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = SlurmCluster(directory, num_nodes, cpus, more or [])
        stack.callback(cluster.kill_rest)
        stack.enter_context(_munged(cluster))
        stack.enter_context(_daemon(cluster, "slurmctld", "slurmctld", "-D", "-i"))
        for node in cluster.nodes:
            stack.enter_context(_daemon(cluster, f"slurmd-{node}", "slurmd", "-D", "-N", node))
        cluster.wait_until_ready()
        stack.callback(cluster.cancel_all)
        yield cluster


@contextmanager
def _munged(cluster: SlurmCluster) -> Iterator[None]:
    """The service by which the daemons know each other, with a key of its own."""
    directory = cluster.directory
    key = directory / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {
        "--key-file": key,
        "--socket": directory / "munge.socket",
        "--pid-file": directory / "munged.pid",
        "--seed-file": directory / "munge.seed",
        "--log-file": directory / "munged-own.log",
    }
    words = [f"{flag}={path}" for flag, path in files.items()]
    with _daemon(cluster, "munged", "munged", "--foreground", "--force", *words):
        deadline = time.monotonic() + END_SECS
        while not (directory / "munge.socket").exists():
            if time.monotonic() > deadline:
                raise AssertionError(f"munged did not start\n{cluster.logs()}")
            time.sleep(0.05)
        yield


@contextmanager
def _daemon(cluster: SlurmCluster, name: str, *words: str) -> Iterator[None]:
    """A daemon in the foreground, which ends with the context or with the test's process."""
    with (cluster.directory / f"{name}.log").open("w") as log:
        process = cluster.start(
            "setpriv", "--pdeathsig", "KILL", *words, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _settings(directory: Path, nodes: list[str], cpus: int) -> str:
    """The cluster's slurm.conf."""
    host = socket.gethostname().partition(".")[0]
    port, *ports = _free_ports(1 + len(nodes))
    lines = [
        "ClusterName=rookery",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={port}",
        f"SlurmUser={getpass.getuser()}",
        f"SlurmdUser={getpass.getuser()}",
        f"AuthInfo=socket={directory}/munge.socket",
        f"StateSaveLocation={directory}/state",
        f"SlurmdSpoolDir={directory}/spool-%n",
        f"SlurmctldPidFile={directory}/slurmctld.pid",
        f"SlurmdPidFile={directory}/slurmd-%n.pid",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SchedulerType=sched/builtin",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "MpiDefault=none",
    ]
    for node, number in zip(nodes, ports, strict=True):
        lines.append(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={number} CPUs={cpus}"
        )
    lines.append("PartitionName=all Nodes=ALL Default=YES State=UP")
    (directory / "state").mkdir()
    return "\n".join(lines) + "\n"


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
