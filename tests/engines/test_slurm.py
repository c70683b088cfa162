"""Real Slurm: ranks that srun starts on several nodes train, fail, and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.cli.main import main
from rookery.runs.find import load_checkpoint
from tests.engines.slurm_cluster import SlurmCluster, slurm_cluster
from tests.engines.test_mpi import END_SECS, PLAIN, ROOKERY, ROOT, SLOW, SMALL, pid_of, same
from tests.faults import processes as p

pytestmark = pytest.mark.slow

SRUN = ["srun", "--mpi=pmi2", "-N", "3", "-n", "3"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster(num_nodes=3) as running:
        yield running


@pytest.fixture
def slow_job(cluster: SlurmCluster, tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A run that has a checkpoint and goes on for long, and its srun."""
    run = tmp_path / "run"
    words = [*SRUN, "-X", *ROOKERY, "train", PLAIN, *SMALL, *SLOW, "--run", str(run)]
    process = cluster.start(*words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    yield run, process
    cluster.cancel_all()
    process.communicate(timeout=END_SECS)


def state_of(run: Path) -> tuple[str, str]:
    status = json.loads((run / "status.json").read_text())
    return status["state"], status["reason"]


def test_srun_gives_every_rank_a_node_of_its_own(cluster: SlurmCluster) -> None:
    code, said = cluster.run("srun", "-N", "3", "-n", "3", "printenv", "SLURMD_NODENAME")
    assert (code, sorted(said.split())) == (0, cluster.nodes)


@pytest.mark.parametrize("formation", ["sync", pytest.param("allreduce", marks=pytest.mark.long)])
def test_ranks_on_three_nodes_train_resume_and_are_evaluated(
    cluster: SlurmCluster, tmp_path: Path, formation: str
) -> None:
    run = tmp_path / "run"
    settings = [PLAIN, *SMALL, "--formation", formation, "--steps", "800", "--quiet"]
    words = [*ROOKERY, "train", *settings, "--run", str(run)]
    cluster.wait_until_ready()
    code, said = cluster.run(*SRUN, *words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert (code, said) == (0, "")
    steps = load_checkpoint(run, "latest").steps
    assert steps >= 800
    if formation == "sync":  # one thread learns the same, to the bit
        inline = ["--actors", "2", "--run", str(tmp_path / "inline")]
        assert main(["train", *settings, *inline]) == 0
        same(run, tmp_path / "inline")
    words = [*ROOKERY, "resume", str(run), "--steps", str(steps + 400), "--quiet"]
    cluster.wait_until_ready()  # srun says so where it has to wait for nodes
    code, said = cluster.run(*SRUN, *words, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert (code, said) == (0, "")
    assert load_checkpoint(run, "latest").steps >= steps + 400
    assert main(["eval", str(run), "--episodes", "2"]) == 0


def test_ranks_find_each_other_whatever_their_memory_holds(cluster: SlurmCluster) -> None:
    """MPICH may tell parts of it to Slurm, which then misreads who is where."""
    code = (
        "import os; held = [os.urandom(n) for _ in range(3000) for n in (600, 1000, 4000, 4500)]; "
        "held = held[::2]; from rookery.engines.mpi import world; ranks = world(); "
        "assert ranks.gather_text(str(ranks.rank)) == ['0', '1', '2']; ranks.leave()"
    )
    cluster.wait_until_ready()
    assert cluster.run(*SRUN, sys.executable, "-c", code, cwd=ROOT) == (0, "")


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_killed_rank_is_named_once_and_ends_the_job(
    slow_job: tuple[Path, subprocess.Popen[str]], rank: int
) -> None:
    run, srun = slow_job
    os.kill(pid_of(run, rank), signal.SIGKILL)
    said, _ = srun.communicate(timeout=END_SECS)
    assert srun.returncode == 137
    assert f"rookery: rank {rank} on {os.uname().nodename} was killed by SIGKILL" in said
    assert said.count("rookery: ") == 1, said
    load_checkpoint(run, "latest")


def test_control_c_of_srun_ends_with_a_checkpoint(
    slow_job: tuple[Path, subprocess.Popen[str]],
) -> None:
    run, srun = slow_job
    srun.send_signal(signal.SIGINT)
    said, _ = srun.communicate(timeout=p.PATIENCE_SECS)
    assert srun.returncode == 130, said
    assert state_of(run) == ("interrupted", "SIGINT")
    load_checkpoint(run, "latest")


def test_scancel_ends_with_a_checkpoint(
    cluster: SlurmCluster, slow_job: tuple[Path, subprocess.Popen[str]]
) -> None:
    run, srun = slow_job
    job = cluster.run("squeue", "-h", "-o", "%i")[1].strip()
    assert cluster.run("scancel", "--signal=TERM", job) == (0, "")
    assert cluster.run("scancel", job) == (0, "")  # a job whose time is up gets two as well
    said, _ = srun.communicate(timeout=p.PATIENCE_SECS)
    # An srun that did not hear of its ranks' ends in time says so, and its code says nothing.
    assert srun.returncode == 143 or "Timed out waiting for job step" in said, said
    assert state_of(run) == ("interrupted", "SIGTERM")
    load_checkpoint(run, "latest")


def test_without_slurm_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_CI", "1")
    monkeypatch.setattr("tests.engines.slurm_cluster.PATH", "/nowhere")
    with pytest.raises(AssertionError, match="`make system-deps` installs Slurm"), slurm_cluster():
        pass
