"""Real processes around parameter servers: killed, interrupted, resumed."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rookery.cli.main import main
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.faults.test_local_faults import SLOW_STEPS, WORLD, finish

pytestmark = pytest.mark.slow

SMALL = (
    "--formation", "paramserver", "--engine", "local", "--workers", "2", "--envs", "4",
    "--servers", "2", "--algo", "a2c", "--a2c.rollout_steps", "10",
    "--policy.normalize_obs", "true", "--log-every", "80", "--save-every", "400",
    "--eval.episodes", "0", "--stop-at", "none",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)


def trained(run: Path, *flags: str) -> subprocess.Popen[str]:
    process = p.start(run, WORLD, *SMALL, *SLOW_STEPS, *flags)
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    return process


def kill_and_see_it_go_on(run: Path, name: str, pid: int) -> None:
    steps = p.steps(run)
    p.kill(pid)
    p.until(lambda: p.members(run).get(name) not in (None, pid), f"a new {name}")
    p.until(lambda: p.steps(run) > steps + 300, "it to go on")


@pytest.mark.parametrize(
    ("mode", "killed"), [("sync", ("server-1", "worker-0")), ("async", ("server-0",))]
)
def test_killed_servers_and_workers_are_replaced_and_the_others_go_on(
    run: Path, mode: str, killed: tuple[str, ...]
) -> None:
    process = trained(run, "--steps", "4000", "--paramserver.mode", mode)
    names = ("worker-0", "worker-1", "server-0", "server-1", "session-0")
    before = p.members(run)
    assert set(before) == set(names)
    for name in killed:
        kill_and_see_it_go_on(run, name, before[name])
    now = p.members(run)
    assert [name for name in names if now[name] != before[name]] == sorted(killed, reverse=True)
    code, errors = finish(process)
    assert code == 0, errors
    for name in killed:
        assert f"{name}: killed by SIGKILL; replaced" in errors
    lost = re.findall(r"(server-\d): goes on from what was saved last: its (\d+) updates", errors)
    assert {name for name, _ in lost} <= set(killed)
    assert all(0 < int(number) < 4000 // 20 for _, number in lost)
    records = read_metrics(run / "metrics.jsonl")
    assert records[-1]["fleet/restarts"] == len(killed)
    steps = [record["steps"] for record in records]
    assert steps == sorted(set(steps)), "nothing is told twice"
    updates = [record["updates"] for record in records]
    assert updates == sorted(updates)
    saved = load_checkpoint(run, "latest")
    for part in ("weights", "optimizer"):
        for name, array in saved.parts[part].arrays.items():
            assert torch.isfinite(torch.as_tensor(array)).all(), name


def test_a_killed_session_takes_all_back_to_the_last_checkpoint(run: Path) -> None:
    process = trained(run, "--steps", "3000")
    before = p.members(run)
    p.kill(before["session-0"])
    p.until(lambda: set(before.values()).isdisjoint(p.members(run).values()), "all to be new")
    code, errors = finish(process)
    assert code == 0, errors
    assert "session-0: killed by SIGKILL; the fleet goes back to the checkpoint at step " in errors
    assert load_checkpoint(run, "latest").steps >= 3000


def test_ctrl_c_ends_all_and_it_resumes_with_other_numbers(run: Path) -> None:
    process = trained(run, "--steps", "1000000")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    assert not p.everyone(run)
    saved = load_checkpoint(run, "latest")
    more = ["--steps", str(saved.steps + 600), "--workers", "3", "--servers", "1"]
    assert main(["resume", str(run), *more, "--quiet"]) == 0
    again = load_checkpoint(run, "latest")
    assert again.steps >= saved.steps + 600
    assert int(again.parts["optimizer"].arrays["step"]) > int(
        saved.parts["optimizer"].arrays["step"]
    )
    last = read_metrics(run / "metrics.jsonl")[-1]
    assert last["fleet/workers"] == 3
    assert last["train/staleness_max"] >= last["train/staleness_mean"] >= 0.0


BAD = {
    "--paramserver.num_gradients 0": "an update needs at least 1 gradient, got 0",
    "--paramserver.num_gradients 3": "3 gradients an update cannot come of 2 workers (--workers)",
    "--paramserver.num_servers 100000": "100000 servers cannot share",
    "--paramserver.max_staleness 4": "is for mode async",
    "--workers 0": "paramserver.num_actors: must be at least 1",
    "--optimizer.average_updates 5": "formation paramserver does not average weights",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_start_is_said_before_anything_starts(
    line: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", WORLD, *SMALL, *line.split(), "--run", str(run)]) == 2
    assert BAD[line] in capsys.readouterr().err
    assert not run.exists()
