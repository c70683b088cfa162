"""Real mpiexec: ranks that train together, agree, fail and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rookery.cli.main import main
from rookery.engines.launcher import Launch, launch_of, slurm_step_of
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.namespaces import Network, network

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")
ROOKERY = [sys.executable, "-m", "rookery"]
PLAIN = "tests.faults.fault_worlds:Plain"
SMALL = [
    "--envs", "4", "--ppo.rollout_steps", "20", "--ppo.num_minibatches", "1", "--ppo.num_epochs",
    "1", "--log-every", "80", "--save-every", "400", "--eval.episodes", "0", "--stop-at", "none",
]  # fmt: skip
SLOW = ["--env.kwargs", "{step_secs: 0.002}", "--steps", "1000000"]
END_SECS = 15.0


class Ranks:
    """An MPI job under test."""

    def __init__(self, *words: str, hosts: Network | None = None) -> None:
        command = [MPIEXEC, *words]
        if hosts is not None:
            command = hosts.command(MPIEXEC, *hosts.flags, *words)
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def end(self, timeout: float = p.PATIENCE_SECS) -> tuple[int, str]:
        """Exit code and everything said."""
        said, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, said


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = p.shared_memory()
    yield
    p.until(lambda: p.shared_memory() <= before, "shared memory to be gone", timeout_secs=10)


def pid_of(run: Path, rank: int) -> int:
    """The process of a rank, as the run's directory tells."""
    ranks = (run / "logs" / "ranks.txt").read_text()
    return int(ranks.split(f"rank {rank} pid ")[1].split()[0])


def job(count: int, *words: str) -> tuple[int, str]:
    return Ranks("-n", str(count), *ROOKERY, *words).end()


def weights(run: Path) -> dict[str, torch.Tensor]:
    arrays = load_checkpoint(run, "latest", ["weights"]).parts["weights"].arrays
    return {name: torch.as_tensor(array) for name, array in arrays.items()}


def same(first: Path, second: Path) -> None:
    ours, theirs = weights(first), weights(second)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


COMMON = [
    "CartPole-v1", "--envs", "8", "--ppo.rollout_steps", "16", "--ppo.num_minibatches", "2",
    "--ppo.num_epochs", "2", "--policy.normalize_obs", "true", "--steps", "1000",
    "--eval.episodes", "2", "--quiet",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("core", [pytest.param("none", marks=pytest.mark.long), "gru"])
def test_ranks_of_sync_learn_what_one_thread_learns_to_the_bit(tmp_path: Path, core: str) -> None:
    settings = [*COMMON, "--policy.core", core, "--ppo.rollouts_per_update", "2"]
    code, said = job(3, "train", *settings, "--run", str(tmp_path / "mpi"))
    assert code == 0, said
    inline = ["--actors", "2", "--run", str(tmp_path / "inline")]
    assert main(["train", *settings, *inline]) == 0
    same(tmp_path / "mpi", tmp_path / "inline")
    record = read_metrics(tmp_path / "mpi" / "metrics.jsonl")[-1]
    assert record["eval/episodes"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("core", [pytest.param("none", marks=pytest.mark.long), "lstm"])
def test_ranks_of_allreduce_learn_what_processes_learn_to_the_bit(
    tmp_path: Path, core: str
) -> None:
    settings = [*COMMON, "--policy.core", core, "--formation", "allreduce"]
    code, said = job(2, "train", *settings, "--run", str(tmp_path / "mpi"))
    assert code == 0, said
    local = ["--engine", "local", "--workers", "2", "--run", str(tmp_path / "local")]
    assert main(["train", *settings, *local]) == 0
    same(tmp_path / "mpi", tmp_path / "local")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "acting", "totals"),
    [
        (["--formation", "async", "--algo", "impala"], 2, [800]),
        (["--algo", "dqn", "--dqn.learning_starts", "200"], 1, [500, 800]),
        (
            ["--formation", "paramserver", "--algo", "a2c", "--policy.normalize_obs", "true"],
            1,
            [400, 800],
        ),
    ],
    ids=["async", "replay", "paramserver"],
)
def test_ranks_that_do_not_wait_for_each_other_learn_and_go_on(
    tmp_path: Path, words: list[str], acting: int, totals: list[int]
) -> None:
    run = str(tmp_path / "run")
    small = ["--envs", "4", "--eval.episodes", "2", "--log-every", "100", "--run", run]
    first = ["train", "CartPole-v1", *small, *words]
    for total in totals:
        begin = first if total == totals[0] else ["resume", run]
        code, said = job(3, *begin, "--steps", str(total), "--quiet")
        assert code == 0, said
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    learned = [each for each in records if "train/grad_norm" in each]
    assert [each["updates"] for each in learned] == sorted({each["updates"] for each in learned})
    assert learned[-1]["steps"] >= 800
    assert acting in (learned[-1].get("fleet/actors"), learned[-1].get("fleet/workers"))
    assert sum("eval/return_mean" in each for each in records) == len(totals)


@pytest.mark.long
@pytest.mark.parametrize(("count", "goal"), [(4, ("--stop-at", "60")), (11, ())])
def test_more_ranks_than_cores_solve_cartpole(
    count: int, goal: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    flags = ("--eval.episodes", "20", *goal, "--run", str(run))
    ranks = Ranks("-n", str(count), *ROOKERY, "train", "cartpole", *flags)
    code, said = ranks.end(2 * p.PATIENCE_SECS)
    assert code == 0, said
    assert "Solved" in said
    assert json.loads((run / "status.json").read_text())["state"] == "solved"
    assert len((run / "logs" / "ranks.txt").read_text().splitlines()) == count
    records = read_metrics(run / "metrics.jsonl")
    assert {"fleet/slowest_actor", "fleet/learner_wait_share"} <= set(records[0])
    assert main(["eval", str(run), "--episodes", "3"]) == 0


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_and_it_resumes_with_another_number(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = Ranks("-n", "3", *ROOKERY, "train", PLAIN, *SMALL, *SLOW, "--run", str(run))
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    os.kill(pid_of(run, 2), signal.SIGKILL)
    code, said = ranks.end(END_SECS)
    assert code != 0
    assert f"rookery: rank 2 on {os.uname().nodename} was killed by SIGKILL" in said
    assert said.count("was killed by") == 1, said
    steps = load_checkpoint(run, "latest").steps
    code, said = job(2, "resume", str(run), "--steps", str(steps + 400), "--quiet")
    assert code == 0, said
    assert load_checkpoint(run, "latest").steps >= steps + 400
    assert main(["resume", str(run), "--engine", "inline", "--steps", str(steps + 800)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("formation", ["sync", pytest.param("allreduce", marks=pytest.mark.long)])
def test_an_exception_names_rank_host_and_cause(tmp_path: Path, formation: str) -> None:
    words = ["train", "tests.faults.fault_worlds:Raises", *SMALL, "--formation", formation]
    code, said = job(2, *words, "--steps", "100000", "--run", str(tmp_path / "run"))
    assert code == 3, said
    assert "rookery: rank " in said
    assert f" on {os.uname().nodename}: environment" in said
    assert "the pole is on fire" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_rank_that_hangs_in_c_is_noticed_and_named(tmp_path: Path) -> None:
    marker = tmp_path / "stuck"
    ranks = Ranks(
        "-n", "2", *ROOKERY, "train", "tests.faults.fault_worlds:HangsInC", *SMALL,
        "--env.kwargs", f"{{marker: '{marker}'}}", "--env.step_timeout_secs", "2",
        "--steps", "100000", "--run", str(tmp_path / "run"),
    )  # fmt: skip
    p.until(marker.exists, "a rank to be stuck")
    begun = time.monotonic()
    code, said = ranks.end(60)
    assert code != 0
    assert "has been silent for 14 s: it hangs" in said
    assert time.monotonic() - begun < 4 + END_SECS + 5  # the machine may be busy


@pytest.mark.slow
def test_control_c_ends_every_rank_with_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ranks = Ranks("-n", "2", *ROOKERY, "train", PLAIN, *SMALL, *SLOW, "--run", str(run))
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    ranks.process.send_signal(signal.SIGINT)
    code, said = ranks.end()
    assert code == 130, said
    assert "BAD TERMINATION" not in said
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    load_checkpoint(run, "latest")


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    if os.geteuid() != 0:
        pytest.skip("only root can make two hosts of one")
    with network(2) as made:
        yield made


def test_ranks_on_two_hosts_train_together(hosts: Network, tmp_path: Path) -> None:
    settings = [PLAIN, *SMALL, "--steps", "800", "--quiet"]
    words = [*ROOKERY, "train", *settings, "--run", str(tmp_path / "mpi")]
    code, said = Ranks("-n", "3", *words, hosts=hosts).end()
    assert (code, said) == (0, "")
    ranks = (tmp_path / "mpi" / "logs" / "ranks.txt").read_text()
    assert [line.split()[-1] for line in ranks.splitlines()] == ["node-a", "node-b", "node-a"]
    assert main(["train", *settings, "--actors", "2", "--run", str(tmp_path / "inline")]) == 0
    same(tmp_path / "mpi", tmp_path / "inline")


@pytest.mark.parametrize(
    ("rank", "host"), [pytest.param(0, "node-a", marks=pytest.mark.long), (1, "node-b")]
)
def test_a_killed_rank_ends_the_ranks_of_the_other_host(
    hosts: Network, tmp_path: Path, rank: int, host: str
) -> None:
    run = tmp_path / "run"
    words = [*ROOKERY, "train", PLAIN, *SMALL, *SLOW, "--run", str(run)]
    ranks = Ranks("-n", "3", *words, hosts=hosts)
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    os.kill(pid_of(run, rank), signal.SIGKILL)
    code, said = ranks.end(END_SECS)
    assert code != 0
    assert f"rookery: rank {rank} on {host} was killed by SIGKILL" in said
    assert said.count("was killed by") == 1, said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-n", "2", *ROOKERY, "train", "cartpole", "--stepz", "3"], "unknown flag --stepz"),
        pytest.param(
            ["-n", "2", *ROOKERY, "train", "cartpole", "--run", "/proc/x/y"],
            "cannot write /proc/x",
            marks=pytest.mark.long,
        ),
        (
            ["-n", "1", *ROOKERY, "train", "cartpole", ":", "-n", "1", *ROOKERY, "train",
             "cartpole", "--lr", "0.5"],
            "has other settings; start every rank with the same command and versions",
        ),
    ],
)  # fmt: skip
def test_what_cannot_start_is_said_once_and_ends_all(words: list[str], message: str) -> None:
    code, said = Ranks(*words).end()
    assert code == 2
    assert message in said
    assert said.count("\n") == 1, said


def test_one_rank_alone_is_inline_and_says_so(tmp_path: Path) -> None:
    words = ["train", "cartpole", "--engine", "mpi", "--steps", "300", "--eval.episodes", "0"]
    code, said = job(1, *words, "--run", str(tmp_path / "run"))
    assert code == 0, said
    assert said.startswith("one rank alone: engine inline\n")


def test_without_a_launcher_the_engine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--engine", "mpi"]) == 2
    assert "no MPI launcher started this process; `mpiexec -n 4" in capsys.readouterr().err


def test_launchers_are_known_by_their_variables() -> None:
    assert launch_of({"PMI_RANK": "3", "PMI_SIZE": "8"}) == Launch(3, 8)
    assert launch_of({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}) == Launch(0, 2)
    assert launch_of({"PMIX_RANK": "1", "SLURM_NTASKS": "4"}) == Launch(1, 4)
    assert launch_of({"SLURM_NTASKS": "4"}) is None


def test_a_rank_knows_whether_srun_itself_started_it() -> None:
    srun = {
        "PMI_RANK": "1", "PMI_SIZE": "4", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4",
    }  # fmt: skip
    assert slurm_step_of(srun) == "7.0"
    assert slurm_step_of(srun | {"PMI_RANK": "2"}) is None  # mpiexec in a job of Slurm
    assert slurm_step_of({"PMI_RANK": "1", "PMI_SIZE": "4"}) is None


def test_mpi_is_not_imported_outside_an_mpi_run() -> None:
    code = (
        "import sys; from rookery.cli.main import main; main(['train', 'cartpole', '--steps', "
        "'100', '--eval.episodes', '0', '--quiet', '--run', sys.argv[1]]); "
        "sys.exit('mpi4py' in sys.modules)"
    )
    import tempfile

    with tempfile.TemporaryDirectory() as temp:
        done = subprocess.run([sys.executable, "-c", code, f"{temp}/run"], cwd=ROOT, check=False)
    assert done.returncode == 0
