"""What evaluations tell of ``info``: the mean of its values at the ends of whole episodes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from rookery.cli.main import main
from rookery.envs.episodes import EpisodeEnvs
from rookery.envs.make import EnvConfig
from rookery.envs.tmaze import FORWARD
from rookery.roles.evaluator import Evaluation

MAZE = "rookery/TMaze-v0"
SMALL: dict[str, Any] = {
    "env": {"num_envs": 2, "kwargs": {"length": 3}},
    "policy": {"hidden": [8]},
    "ppo": {"rollout_steps": 16},
    "metrics": {"sinks": ["jsonl"], "info_keys": ["right_turn", "nowhere"]},
    "eval": {"episodes": 7, "num_envs": 3, "deterministic": False},
}


def test_the_last_info_of_every_episode_in_the_order_of_the_seeds() -> None:
    config = EnvConfig(id=MAZE, kwargs={"length": 3})
    keys = ("right_turn", "nowhere")
    envs = EpisodeEnvs(config, seeds=list(range(9)), num_envs=2, max_steps=None, info_keys=keys)
    envs.start()
    rng, turns = np.random.default_rng(0), 0
    while envs.running.any():
        turns += 1
        envs.step(rng.integers(FORWARD, 3, envs.num_envs))
    envs.close()
    ended_well = [1.0 if score > 0.5 else 0.0 for score in envs.returns]
    assert envs.info["right_turn"] == ended_well
    assert 0 < sum(ended_well) < 9
    assert all(math.isnan(value) for value in envs.info["nowhere"])


def test_means_are_over_the_episodes_that_had_a_value() -> None:
    first = Evaluation((1.0, 2.0), (1, 1), 0, {"won": (1.0, math.nan), "lost": (math.nan,) * 2})
    both = first.and_then(Evaluation((3.0,), (1,), 0, {"won": (0.0,), "lost": (math.nan,)}))
    assert both.info_means() == {"won": 0.5}
    assert both.summary()["info_means"] == {"won": 0.5}
    assert Evaluation((1.0,), (1,)).summary()["info_means"] == {}


@pytest.mark.parametrize("engine", ["inline", pytest.param("local", marks=pytest.mark.slow)])
def test_a_run_records_them_and_eval_prints_them(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = rookery.train(MAZE, run=tmp_path / "run", steps=64, engine=engine, quiet=True, **SMALL)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    (told,) = [record for record in map(json.loads, lines) if "eval/steps" in record]
    assert told["eval/info_right_turn_mean"] * 7 == pytest.approx(
        round(told["eval/info_right_turn_mean"] * 7)
    )
    assert "eval/info_nowhere_mean" not in told
    assert main(["eval", str(run.path), "--episodes", "4"]) == 0
    score, means = capsys.readouterr().out.splitlines()
    assert score.startswith("return ")
    assert means.startswith("means: right_turn ")
    assert main(["eval", str(run.path), "--episodes", "4", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["info_means"]) == {"right_turn"}
