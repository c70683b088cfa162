"""A short training with given settings, in processes of its own: how fast was it, and why."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from rookery.algos.dqn import DQNConfig
from rookery.formations.central import CentralConfig
from rookery.formations.replay import ReplayConfig
from rookery.runs.bottleneck import bottleneck
from rookery.runs.config import RunConfig
from rookery.runs.metrics import read_metrics

_RATE = "time/env_steps_per_s"
START_SECS = 60.0
"""How long a trial may take beyond its time: to start, build and end."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial gave."""

    steps_per_s: float
    """0 if it failed."""
    remark: str
    """Its bottleneck, or why it failed."""


def run_trial(config: RunConfig, secs: float) -> Trial:
    """Train for ``secs`` seconds and read how many steps were made."""
    with tempfile.TemporaryDirectory(prefix="rookery-tune-") as root:
        file, run = Path(root) / "trial.yaml", Path(root) / "run"
        file.write_text(yaml.safe_dump(_only_speed(config, secs).to_tree()), "utf-8")
        words = [sys.executable, "-m", "rookery", "train", "--config", str(file)]
        try:
            done = subprocess.run(
                [*words, "--run", str(run), "--quiet"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=secs + START_SECS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Trial(0.0, f"did not end within {secs + START_SECS:.0f} s")
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            return Trial(0.0, lines[-1] if lines else f"exit code {done.returncode}")
        return _read(run)


def _only_speed(config: RunConfig, secs: float) -> RunConfig:
    """``config`` without what is not training, and many records."""
    algo, formation, record_every = config.algo_config, config.formation_config, 1
    if isinstance(algo, DQNConfig) and isinstance(formation, (ReplayConfig, CentralConfig)):
        # Acting alone, which comes first, is faster than what follows.
        starts = min(algo.learning_starts, 4 * algo.batch_size)
        algo = replace(algo, learning_starts=starts)
        formation = replace(formation, save_replay=False)
        record_every = 100  # updates are small and many
    return replace(
        config,
        algo_config=algo,
        formation_config=formation,
        name="",
        stop_at=None,
        total_steps=10**12,
        time_limit_secs=secs,
        eval=replace(config.eval, episodes=0, every_steps=None),
        metrics=replace(
            config.metrics, every_steps=record_every, every_episodes=None, sinks=("jsonl",)
        ),
        checkpoint=replace(config.checkpoint, every_steps=10**12, history=0),
    )


def _read(run: Path) -> Trial:
    """Steps between the first record and the last: starting up is not training."""
    records = [r for r in read_metrics(run / "metrics.jsonl") if r["updates"] and _RATE in r]
    if len(records) < 2:
        return Trial(0.0, "made less than two updates")
    first, last = records[0], records[-1]
    rate = (last["steps"] - first["steps"]) / (last["wall_secs"] - first["wall_secs"])
    return Trial(rate, bottleneck(last) or "")
