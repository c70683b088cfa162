"""A formation of one page, written outside of the package, under every engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.cli.main import main
from rookery.runs.metrics import read_metrics
from rookery.training import evaluate_run
from tests import toy_worlds

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
GOSSIP = "tests.gossip:Gossip"
SETTINGS: dict[str, Any] = {
    "formation": GOSSIP,
    "actors": 4,
    "envs": 16,
    "seed": 1,
    "policy": {"hidden": [32]},
    "eval": {"episodes": 0},
    "metrics": {"sinks": ["jsonl"]},
    "log_every": 1000,
    "lr": 3e-3,
    "ppo": {"rollout_steps": 16, "num_minibatches": 4, "gamma": 0.9, "entropy_coef": 0.001},
}


@pytest.mark.parametrize("engine", [{"engine": "inline"}, {"threads": True}, {"engine": "local"}])
def test_it_learns(engine: dict[str, Any], tmp_path: Path) -> None:
    run = rookery.train(
        "tests.toy_worlds:Mirror", run=tmp_path / "run", steps=10_000, **SETTINGS, **engine
    )
    assert run.finish.steps >= 10_000
    assert run.evaluate(40)["return_mean"] > 0.95 * toy_worlds.MIRROR_STEPS
    last = read_metrics(run.path / "metrics.jsonl")[-1]
    assert last["fleet/actors"] == 4
    config = (run.path / "config.yaml").read_text()
    assert f"formation: {GOSSIP}" in config
    assert "\ngossip:\n" in config, "its settings have its name"


def test_it_learns_over_mpi(tmp_path: Path) -> None:
    flags = [
        "--formation", GOSSIP, "--envs", "16", "--seed", "1", "--policy.hidden", "[32]",
        "--eval.episodes", "0", "--lr", "3e-3", "--ppo.rollout_steps", "16",
        "--ppo.num_minibatches", "4", "--ppo.gamma", "0.9", "--ppo.entropy_coef", "0.001",
    ]  # fmt: skip
    mpiexec = str(Path(sys.executable).parent / "mpiexec")
    done = subprocess.run(
        [
            mpiexec,
            "-n",
            "4",
            sys.executable,
            "-m",
            "rookery",
            "train",
            "tests.toy_worlds:Mirror",
            *flags,
            "--steps",
            "10000",
            "--run",
            str(tmp_path / "run"),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"
    trained = evaluate_run(tmp_path / "run", 40)
    assert trained["return_mean"] > 0.95 * toy_worlds.MIRROR_STEPS


def test_its_plan_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--formation", GOSSIP, "--engine", "local", "--actors", "4"]
    assert main(["plan", "CartPole-v1", *words]) == 0
    shown = capsys.readouterr().out
    assert "learner x2" in shown
    assert "learner -> learner" in shown
