"""Real kill -9, Ctrl-C and resuming of workers that step together."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.cli.main import main
from rookery.recipes.catalog import load_recipe, parse_yaml
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.faults.test_local_faults import SLOW_STEPS, WORLD, finish

pytestmark = pytest.mark.slow

SMALL = (
    "--formation", "allreduce", "--engine", "local", "--workers", "2", "--envs", "4",
    "--ppo.rollout_steps", "20", "--ppo.num_minibatches", "1", "--ppo.num_epochs", "1",
    "--allreduce.check_every", "5", "--log-every", "80", "--save-every", "400",
    "--eval.episodes", "0", "--stop-at", "none",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)


@pytest.mark.parametrize("name", ["worker-0", pytest.param("worker-1", marks=pytest.mark.long)])
def test_a_killed_worker_takes_all_back_to_the_last_checkpoint(run: Path, name: str) -> None:
    process = p.start(run, WORLD, *SMALL, *SLOW_STEPS, "--steps", "4000")
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    before = p.members(run)
    assert set(before) == {"worker-0", "worker-1"}
    p.kill(before[name])
    p.until(lambda: set(before.values()).isdisjoint(p.members(run).values()), "all to be new")
    code, errors = finish(process)
    assert code == 0, errors
    assert f"{name}: killed by SIGKILL" in errors
    assert "goes back to the checkpoint at step " in errors
    steps = [record["steps"] for record in read_metrics(run / "metrics.jsonl")]
    assert steps == sorted(set(steps)), "nothing is told twice"
    assert load_checkpoint(run, "latest").steps >= 4000
    assert not p.everyone(run)


def test_ctrl_c_ends_all_with_a_checkpoint_and_it_resumes_with_more(run: Path) -> None:
    process = p.start(run, WORLD, *SMALL, *SLOW_STEPS, "--steps", "1000000")
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    assert not p.everyone(run)
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
    steps = load_checkpoint(run, "latest").steps
    more = ["--steps", str(steps + 600), "--workers", "3", "--quiet"]
    assert main(["resume", str(run), *more]) == 0
    assert load_checkpoint(run, "latest").steps >= steps + 600
    assert read_metrics(run / "metrics.jsonl")[-1]["fleet/workers"] == 3


def test_a_killed_driver_leaves_no_worker(run: Path) -> None:
    process = p.start(run, WORLD, *SMALL, *SLOW_STEPS, "--steps", "1000000")
    p.until(lambda: set(p.members(run)) == {"worker-0", "worker-1"}, "both workers")
    process.kill()
    process.wait()
    p.until(lambda: not p.everyone(run), "the workers to die", timeout_secs=10)


def test_an_exception_of_one_worker_stops_the_run_with_one_line(run: Path) -> None:
    process = p.start(run, "tests.faults.fault_worlds:Raises", *SMALL, "--steps", "100000")
    code, errors = finish(process)
    assert code == 3
    last = errors.strip().splitlines()[-1]
    assert last.startswith("rookery: worker-")
    assert "log:" in last
    assert not p.everyone(run)


def test_one_thread_carries_one_worker(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--formation", "allreduce", "--workers", "2", "--steps", "1", "--eval.episodes", "0"]
    assert main(["train", "cartpole", *words, "--run", str(tmp_path / "run")]) == 0
    told = capfd.readouterr()
    assert "allreduce.num_actors: 1, not 2: engine inline is one thread" in told.err + told.out
    tree = parse_yaml((tmp_path / "run" / "config.yaml").read_text(), "config.yaml")
    assert tree["env"]["num_envs"] == load_recipe("cartpole")["env"]["num_envs"]


def test_workers_learn_with_memory_and_statistics(tmp_path: Path) -> None:
    flags = [
        "--formation", "allreduce", "--engine", "local", "--workers", "2", "--envs", "8",
        "--policy.core", "gru", "--policy.normalize_obs", "true", "--ppo.normalize_reward", "true",
        "--ppo.num_minibatches", "2", "--allreduce.check_every", "1", "--steps", "1500",
        "--eval.episodes", "2", "--quiet", "--run", str(tmp_path / "run"),
    ]  # fmt: skip
    assert main(["train", "CartPole-v1", *flags]) == 0
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert records[-1]["eval/episodes"] == 2
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2"]) == 0
