"""Real kill -9 of every role of formation async, with queues that are full."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.engines.test_async import assert_exact
from tests.faults import processes as p
from tests.faults.test_local_faults import SLOW_STEPS, WORLD, finish

pytestmark = pytest.mark.slow

SMALL = (
    "--formation", "async", "--engine", "local", "--actors", "2", "--envs", "4",
    "--log-every", "40", "--save-every", "400", "--eval.episodes", "0", "--stop-at", "none",
    "--async.batch_envs", "2",
)  # fmt: skip
QUICK = ("--algo", "impala", "--impala.rollout_steps", "10")
PRESSED = (
    "--algo", "tests.engines.slowed:Slowed", "--slowed.rollout_steps", "10",
    "--slowed.pause_secs", "0.05",
)  # fmt: skip
"""A learner slower than its actors: their slots are always full."""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)


def trained(run: Path, *flags: str) -> subprocess.Popen[str]:
    process = p.start(run, WORLD, *SMALL, *flags)
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    return process


def test_an_actor_killed_under_back_pressure_loses_nothing_it_had_put(run: Path) -> None:
    process = trained(run, *PRESSED, "--steps", "2000")
    before = p.members(run)
    assert {"actor-0", "actor-1", "learner-0"} <= set(before)
    p.kill(before["actor-1"])
    p.until(lambda: p.members(run).get("actor-1") not in (None, before["actor-1"]), "a new actor-1")
    now = p.members(run)
    assert all(now[name] == before[name] for name in ("actor-0", "learner-0"))
    code, errors = finish(process)
    assert code == 0, errors
    assert "actor-1: killed by SIGKILL; replaced" in errors
    records = read_metrics(run / "metrics.jsonl")
    assert records[-1]["fleet/restarts"] == 1
    for record in records:
        assert_exact(record, capacity=4)
    assert records[-1]["fleet/rollouts_waiting"] >= 2, "there was pressure"
    assert records[-1]["fleet/actor_wait_share"] > records[-1]["fleet/learner_wait_share"]


def test_an_actor_killed_in_its_rollout_is_replaced(run: Path) -> None:
    process = trained(run, *QUICK, *SLOW_STEPS, "--steps", "3000")
    for _ in range(2):
        victim = p.until(lambda: p.members(run).get("actor-0"), "actor-0")
        p.kill(victim)
        p.until(lambda pid=victim: p.members(run).get("actor-0") not in (None, pid), "a new one")
    code, errors = finish(process)
    assert code == 0, errors
    records = read_metrics(run / "metrics.jsonl")
    for record in records:
        assert_exact(record, capacity=4)
    assert records[-1]["fleet/restarts"] == 2


def test_a_killed_learner_takes_the_fleet_back_to_the_checkpoint(run: Path) -> None:
    process = trained(run, *QUICK, *SLOW_STEPS, "--steps", "3000")
    before = p.members(run)
    p.kill(before["learner-0"])
    code, errors = finish(process)
    assert code == 0, errors
    assert "the fleet goes back to the checkpoint at step " in errors
    written = [record["steps"] for record in p.records(run)]
    assert written == sorted(set(written)), "the metrics were cut to the checkpoint"
    assert "going on from step" in (run / "logs" / "learner-0.log").read_text()


def test_a_killed_driver_leaves_nobody(run: Path) -> None:
    process = trained(run, *PRESSED, "--steps", "1000000")
    assert len(p.members(run)) == 3
    process.kill()
    process.wait()
    p.until(lambda: not p.everyone(run), "the children to die", timeout_secs=10)


def test_ctrl_c_ends_with_a_checkpoint_though_actors_wait(run: Path) -> None:
    process = trained(run, *PRESSED, "--steps", "1000000")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    assert not p.everyone(run)
    saved = load_checkpoint(run, "latest")
    assert saved.parts["learner"].data["steps"] == saved.steps
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"
