"""``rookery slurm`` on a real Slurm: jobs whose hosts join, die, and go on after a requeue."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from rookery.runs.slurm_job import read_slurm_job
from tests.engines.slurm_cluster import SlurmCluster, slurm_cluster
from tests.engines.test_hosts import REPLAY, SLOW_STEPS, SYNC, WORLD
from tests.faults import processes as p

pytestmark = pytest.mark.slow

ENDLESS = (*REPLAY, *SLOW_STEPS, "--actors", "1", "--steps", "1000000")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    with slurm_cluster(num_nodes=3, cpus=2) as running:
        yield running


@pytest.fixture
def run(tmp_path: Path, cluster: SlurmCluster) -> Iterator[Path]:
    yield tmp_path / p.own_name()
    cluster.cancel_all()


def submit(cluster: SlurmCluster, run: Path, *flags: str) -> tuple[int, str]:
    words = [sys.executable, "-m", "rookery", "slurm", *flags, "--run", str(run)]
    env = {"PYTHONPATH": str(p.ROOT), "XDG_CONFIG_HOME": str(run.parent)}
    return cluster.run(*words, cwd=p.ROOT, env=env)


def submitted(cluster: SlurmCluster, run: Path, *flags: str) -> str:
    """The number of the job."""
    cluster.wait_until_ready()
    if "--mpi" not in flags:  # a job of another cluster here may have the same number, and port
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            flags = (*flags, "--listen", f"0.0.0.0:{free.getsockname()[1]}")
    code, said = submit(cluster, run, *flags)
    assert code == 0, said
    job = read_slurm_job(run)
    assert job is not None
    assert f"job {job.job}: {run}" in said
    return job.job


def state(cluster: SlurmCluster, job: str) -> str:
    said = cluster.run("scontrol", "show", "job", job)[1]
    return " ".join(re.findall(r"(?:JobState|Reason|ExitCode|Restarts)=\S+", said))


def joined(run: Path, node: str) -> int | None:
    """The process that joined on ``node``."""
    words = f"join\0--run\0{run}\0--logs\0{run}/hosts/{node}\0".encode()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and words in (entry / "cmdline").read_bytes():
                return int(entry.name)
    return None


def log(run: Path, part: str = "head") -> str:
    files = sorted(run.glob(f"logs/slurm-*-{part}.log"))
    return "\n".join(file.read_text() for file in files)


def hears(run: Path, words: str, times: int = 1, patience_secs: float = p.PATIENCE_SECS) -> None:
    """Wait until the head's log has ``words``."""
    deadline = time.monotonic() + patience_secs
    while log(run).count(words) < times:
        assert time.monotonic() < deadline, f"no '{words}' in\n{log(run)}\n{log(run, 'host-*')}"
        time.sleep(0.1)


def ended(cluster: SlurmCluster, run: Path, job: str, how: str = "COMPLETED") -> None:
    over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    p.until(lambda: any(word in state(cluster, job) for word in over), f"the job: {log(run)}")
    assert how in state(cluster, job), f"{state(cluster, job)}\n{log(run)}"


def begins_again(cluster: SlurmCluster, job: str) -> None:
    """Slurm lets a job wait two minutes after a requeue, unless it is told otherwise."""

    def begun() -> bool:
        cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
        return "JobState=RUNNING" in state(cluster, job) and "Restarts=0" not in state(cluster, job)

    p.until(begun, "the job to begin again", timeout_secs=2 * p.PATIENCE_SECS)


def test_hosts_join_die_come_back_and_end_with_the_run(cluster: SlurmCluster, run: Path) -> None:
    flags = (*REPLAY, *SLOW_STEPS, "--time-limit", "35s", "--nodes", "3", "--cpus", "2")
    job = submitted(cluster, run, WORLD, *flags, "--time", "10")
    hears(run, "joined with 2 actors", times=2)
    host = p.until(lambda: joined(run, "n2"), "the host on n2")
    p.kill(host)
    hears(run, "joined with 2 actors", times=3)
    assert "the host on n2 was killed (exit code 137) and begins anew" in log(run, "host-*")
    ended(cluster, run, job)
    assert sorted(path.name for path in run.glob("hosts/*")) == ["n2", "n3"]
    records = read_metrics(run / "metrics.jsonl")
    assert max(record.get("fleet/joined_actors", 0) for record in records) == 4
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    token = (run / "token").read_text().strip()
    assert (run / "token").stat().st_mode & 0o777 == 0o600
    written = [path for path in run.rglob("*") if path.is_file() and path.name != "token"]
    assert not [path for path in written if token.encode() in path.read_bytes()]


def test_a_signal_ahead_of_the_limit_requeues_and_the_job_goes_on(
    cluster: SlurmCluster, run: Path
) -> None:
    job = submitted(cluster, run, WORLD, *ENDLESS, "--nodes", "2", "--time", "10")
    p.until(lambda: (run / "checkpoints" / "latest").exists(), f"a checkpoint: {log(run)}")
    assert cluster.run("scancel", "--batch", "--signal=USR1", job) == (0, "")
    hears(run, "requeued, to go on from")
    saved = load_checkpoint(run, "latest").steps
    begins_again(cluster, job)
    p.until(lambda: p.steps(run) > saved, f"steps: {log(run)}")
    sessions = json.loads((run / "meta.json").read_text())["sessions"]
    assert [session["command"].split()[1] for session in sessions] == ["train", "resume"]
    steps = [record["steps"] for record in read_metrics(run / "metrics.jsonl")]
    assert steps == sorted(steps)
    cluster.run("scancel", job)
    ended(cluster, run, job, "CANCELLED")
    p.until(lambda: json.loads((run / "status.json").read_text())["reason"] == "SIGTERM", "the end")


def test_what_slurm_refuses_is_told_in_its_words_and_leaves_nothing(
    cluster: SlurmCluster, run: Path
) -> None:
    code, said = submit(cluster, run, WORLD, *ENDLESS, "--nodes", "2", "--partition", "nowhere")
    assert (code, said) == (
        2,
        "rookery: Slurm refuses the job: invalid partition specified: nowhere; Batch job "
        "submission failed: Invalid partition name specified\n",
    )
    assert not run.exists()


# ---- what takes minutes ------------------------------------------------------------------------


@pytest.fixture
def frail() -> Iterator[SlurmCluster]:
    """A cluster that soon notices that a node has failed."""
    with slurm_cluster(num_nodes=4, cpus=2, more=["SlurmdTimeout=10"]) as running:
        yield running


@pytest.fixture
def frail_run(tmp_path: Path, frail: SlurmCluster) -> Iterator[Path]:
    yield tmp_path / p.own_name()
    frail.cancel_all()


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["dqn-cartpole", "ba3c-small"])
def test_a_recipe_runs_to_its_score_on_four_nodes(
    frail: SlurmCluster, frail_run: Path, recipe: str
) -> None:
    job = submitted(frail, frail_run, recipe, "--nodes", "4", "--time", "30", "--actors", "1")
    p.until(lambda: "JobState=COMPLETED" in state(frail, job), "its score", timeout_secs=900)
    assert json.loads((frail_run / "status.json").read_text())["state"] == "solved"
    records = read_metrics(frail_run / "metrics.jsonl")
    assert max(record.get("fleet/hosts", 0) for record in records) == 3


@pytest.mark.long
def test_a_worker_and_a_server_are_killed_and_the_job_goes_on(
    frail: SlurmCluster, frail_run: Path
) -> None:
    flags = ("--servers", "2", "--simulators", "4", *SLOW_STEPS, "--steps", "1000000")
    more = ("--save-every", "500", "--paramserver.patience_secs", "5", "--stop-at", "none")
    words = (WORLD, "--algo", "a2c", "--formation", "paramserver", *flags, *more)
    job = submitted(frail, frail_run, *words, "--nodes", "3", "--cpus", "2", "--time", "10")
    hears(frail_run, "joined with 1 actors", times=2)
    p.until(lambda: (frail_run / "checkpoints" / "latest").exists(), "a checkpoint")
    host = p.until(lambda: joined(frail_run, "n2"), "the host on n2")
    p.kill(host)
    hears(frail_run, "joined with 1 actors", times=3)
    p.kill(p.members(frail_run)["server-1"])
    hears(frail_run, "goes on from what was saved last")
    before = p.steps(frail_run)
    p.until(lambda: p.steps(frail_run) > before + 500, f"steps: {log(frail_run)}")
    assert "RUNNING" in state(frail, job)


@pytest.mark.long
def test_the_time_limit_requeues_and_the_job_goes_on(frail: SlurmCluster, frail_run: Path) -> None:
    flags = ("--nodes", "2", "--time", "2", "--stop-ahead", "60")
    job = submitted(frail, frail_run, WORLD, *ENDLESS, *flags)
    hears(frail_run, "requeued, to go on from", patience_secs=240)
    saved = load_checkpoint(frail_run, "latest").steps
    begins_again(frail, job)
    p.until(lambda: p.steps(frail_run) > saved, "steps")


RANKS = ("--mpi", "pmi2", "--formation", "sync", *SYNC, *SLOW_STEPS)


@pytest.mark.long
def test_ranks_end_with_a_checkpoint_and_go_on(frail: SlurmCluster, frail_run: Path) -> None:
    flags = (*RANKS, "--steps", "1000000", "--nodes", "2", "--cpus", "2", "--time", "10")
    job = submitted(frail, frail_run, WORLD, *flags)
    p.until(lambda: (frail_run / "checkpoints" / "latest").exists(), "a checkpoint")
    frail.run("scancel", "--batch", "--signal=USR1", job)
    hears(frail_run, "requeued, to go on from")
    saved = load_checkpoint(frail_run, "latest").steps
    begins_again(frail, job)
    p.until(lambda: p.steps(frail_run) > saved, f"steps: {log(frail_run)}")


@pytest.mark.long
@pytest.mark.parametrize("formation", ["sync", "allreduce"])
def test_formations_that_need_all_hosts_are_requeued_without_one(
    frail: SlurmCluster, frail_run: Path, formation: str
) -> None:
    flags = (*SYNC, *SLOW_STEPS, "--formation", formation, "--steps", "1000000")
    job = submitted(frail, frail_run, WORLD, *flags, "--nodes", "3", "--cpus", "1", "--time", "10")
    p.until(lambda: (frail_run / "checkpoints" / "latest").exists(), "a checkpoint")
    frail.kill_node("n3")
    begins_again(frail, job)
    saved = load_checkpoint(frail_run, "latest").steps
    p.until(lambda: p.steps(frail_run) > saved, f"steps: {log(frail_run)}", timeout_secs=180)


@pytest.mark.long
def test_a_node_that_fails_is_left_out(frail: SlurmCluster, frail_run: Path) -> None:
    job = submitted(frail, frail_run, WORLD, *ENDLESS, "--nodes", "3", "--time", "10")
    hears(frail_run, "joined with 1 actors", times=2)
    frail.kill_node("n3")
    down = lambda: "n3 down" in frail.run("sinfo", "-h", "-N", "-o", "%N %t")[1]  # noqa: E731
    p.until(down, "Slurm to notice")
    before = p.steps(frail_run)
    p.until(lambda: p.steps(frail_run) > before + 500, "steps")
    assert "RUNNING" in state(frail, job)


@pytest.mark.long
def test_the_heads_node_fails_and_the_job_goes_on_elsewhere(
    frail: SlurmCluster, frail_run: Path
) -> None:
    job = submitted(frail, frail_run, WORLD, *ENDLESS, "--nodes", "2", "--time", "10")
    p.until(lambda: (frail_run / "checkpoints" / "latest").exists(), "a checkpoint")
    node = frail.run("squeue", "-h", "-j", job, "-o", "%B")[1].strip()
    frail.kill_node(node)
    requeued = f"the head's node {node} has failed: requeued"
    p.until(lambda: requeued in log(frail_run, "host-*"), "a host to notice", timeout_secs=150)
    saved = load_checkpoint(frail_run, "latest").steps
    begins_again(frail, job)
    p.until(lambda: p.steps(frail_run) > saved, f"steps: {log(frail_run)}", timeout_secs=180)
