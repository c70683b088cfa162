"""Real processes that write to the same weights: many at once, killed, interrupted, resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rookery.carriers.shared_memory import SharedArena
from rookery.cli.main import main
from rookery.params.hogwild import APPLIED, HogwildMemory
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.faults import quadratic
from tests.faults.test_local_faults import SLOW_STEPS, WORLD, finish

pytestmark = pytest.mark.slow

SMALL = (
    "--formation", "hogwild", "--engine", "local", "--workers", "3", "--envs", "6",
    "--algo", "a2c", "--a2c.rollout_steps", "10", "--policy.normalize_obs", "true",
    "--log-every", "80", "--save-every", "400", "--eval.episodes", "0", "--stop-at", "none",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)


# --- many writers, one set of weights ----------------------------------------------------------


def quadratic_worker(
    arena: SharedArena, worker: int, num_workers: int, steps: int
) -> subprocess.Popen[str]:
    words = [str(n) for n in (arena.descriptor, worker, num_workers, steps)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.quadratic", *words],
        cwd=p.ROOT,
        pass_fds=[arena.descriptor],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.long), 2])
def test_many_writers_without_a_lock_reach_the_optimum(killed: int) -> None:
    num_workers, steps = 4, 1500
    arena = SharedArena.create(quadratic.specs(num_workers))
    memory = HogwildMemory(arena.arrays)
    workers = [
        quadratic_worker(arena, worker, num_workers, 10**9 if worker < killed else steps)
        for worker in range(num_workers)
    ]
    for worker in range(killed):  # in the middle of whatever they do
        assert workers[worker].stdout is not None
        assert workers[worker].stdout.readline() == "begun\n"
        p.until(lambda worker=worker: memory.ledger[worker, APPLIED] > 50, "some updates")
        workers[worker].kill()
        workers[worker].wait()
    for process in workers[killed:]:
        said, _ = process.communicate(timeout=p.PATIENCE_SECS)
        assert process.returncode == 0
        assert int(said.split()[-1]) >= 0
    assert memory.ledger[killed:-1, APPLIED].tolist() == [steps] * (num_workers - killed)
    assert torch.isfinite(memory.weights).all()
    assert all(torch.isfinite(state).all() for state in memory.statistics(0).values())
    error = (memory.weights - quadratic.target()).abs().max()
    assert float(error) < 0.1, "from up to 1 away"
    arena.close()


# --- real runs ---------------------------------------------------------------------------------


def trained(run: Path, *flags: str) -> subprocess.Popen[str]:
    process = p.start(run, WORLD, *SMALL, *SLOW_STEPS, *flags)
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    return process


def test_a_killed_worker_is_replaced_and_the_others_go_on(run: Path) -> None:
    process = trained(run, "--steps", "6000")
    before = p.members(run)
    assert set(before) == {"worker-0", "worker-1", "worker-2", "session-0"}
    p.kill(before["worker-0"])
    p.until(
        lambda: p.members(run).get("worker-0") not in (None, before["worker-0"]), "a new worker-0"
    )
    now = p.members(run)
    assert all(now[name] == before[name] for name in ("worker-1", "worker-2", "session-0"))
    code, errors = finish(process)
    assert code == 0, errors
    assert "worker-0: killed by SIGKILL; replaced" in errors
    records = read_metrics(run / "metrics.jsonl")
    assert records[-1]["fleet/restarts"] == 1
    steps = [record["steps"] for record in records]
    assert steps == sorted(set(steps)), "nothing is told twice"
    saved = load_checkpoint(run, "latest")
    assert 6000 <= saved.steps < 6000 + 3 * 2 * 10 * 2
    for part in ("weights", "optimizer"):
        for name, array in saved.parts[part].arrays.items():
            assert torch.isfinite(torch.as_tensor(array)).all(), name


def test_a_killed_session_takes_all_back_to_the_last_checkpoint(run: Path) -> None:
    process = trained(run, "--steps", "6000")
    before = p.members(run)
    p.kill(before["session-0"])
    p.until(lambda: set(before.values()).isdisjoint(p.members(run).values()), "all to be new")
    code, errors = finish(process)
    assert code == 0, errors
    assert "session-0: killed by SIGKILL; the fleet goes back to the checkpoint at step " in errors
    assert load_checkpoint(run, "latest").steps >= 6000


def test_ctrl_c_ends_all_and_it_resumes_with_more_workers(run: Path) -> None:
    process = trained(run, "--steps", "1000000")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    assert not p.everyone(run)
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    saved = load_checkpoint(run, "latest")
    seen = float(saved.parts["weights"].arrays["encoder.moments.leaf/obs.count"])
    assert seen == saved.steps, "every observation was counted once"
    more = ["--steps", str(saved.steps + 600), "--workers", "5", "--quiet"]
    assert main(["resume", str(run), *more]) == 0
    again = load_checkpoint(run, "latest")
    assert again.steps >= saved.steps + 600
    assert float(again.parts["weights"].arrays["encoder.moments.leaf/obs.count"]) == again.steps
    last = read_metrics(run / "metrics.jsonl")[-1]
    assert last["fleet/workers"] == 5
    assert last["train/staleness_max"] >= last["train/staleness_mean"]


def test_a_killed_driver_leaves_nobody(run: Path) -> None:
    process = trained(run, "--steps", "1000000")
    process.kill()
    process.wait()
    p.until(lambda: not p.everyone(run), "all to die", timeout_secs=10)


def test_an_exception_of_one_worker_stops_the_run_with_one_line(run: Path) -> None:
    process = p.start(run, "tests.faults.fault_worlds:Raises", *SMALL, "--steps", "100000")
    code, errors = finish(process)
    assert code == 3
    assert "the pole is on fire" in errors
    assert "Traceback" not in errors
    assert not p.everyone(run)


BAD = {
    "--engine mpi": "no MPI launcher started this process",
    "--hogwild.devices [cuda:7]": "--device cuda:7",
    "--hogwild.devices [abacus]": "--device abacus",
    "--workers 0": "hogwild.num_actors: must be at least 1",
    "--policy.torso conv1d --policy.core lstm": "conv1d needs an observation that is a sequence",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_start_is_said_before_anything_starts(
    line: str,
    run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", WORLD, *SMALL, *line.split(), "--run", str(run)]) == 2
    assert BAD[line] in capsys.readouterr().err
