"""Under ``inline``, a run killed and resumed equals one that never stopped, bit for bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics

NORMALIZED: dict[str, Any] = {
    "policy": {"hidden": [16], "normalize_obs": True},
    "ppo": {
        "rollout_steps": 16,
        "num_epochs": 2,
        "num_minibatches": 2,
        "normalize_reward": True,
        "entropy_coef": {"start": 0.01, "end": 0.0, "until_steps": 1500},
    },
    "optimizer": {"lr": {"start": 3e-3, "end": 1e-3, "until_steps": 1200}},
    "envs": 4,
    "eval": {"episodes": 2, "every_steps": 700, "max_steps": 50},
    "log_every": 64,
    "save_every": 300,
    "seed": 7,
}


def settings(**changes: Any) -> dict[str, Any]:
    """The settings above with some changed; sections are merged."""
    out = {name: dict(v) if isinstance(v, dict) else v for name, v in NORMALIZED.items()}
    for name, value in changes.items():
        out[name] = out.get(name, {}) | value if isinstance(value, dict) else value
    return out


GRU = {"core": "gru", "core_size": 8}
A2C = {
    "algo": "a2c",
    "a2c": {"rollout_steps": 8, "rollouts_per_update": 2, "normalize_reward": True},
    "optimizer": {"name": "rmsprop", "lr": 1e-3},
    "actors": 2,
    "envs": 8,
}

ASYNC = {
    "algo": "impala",
    "formation": "async",
    "impala": {
        "rollout_steps": 8,
        "num_minibatches": 2,
        "entropy_coef": {"start": 0.01, "end": 0.0, "until_steps": 1500},
    },
    "async": {"num_actors": 2, "slots_per_actor": 3, "batch_envs": 4, "max_lag": 4},
    "envs": 8,
}


REPLAY = {
    "algo": "apex",
    "formation": "replay",
    "apex": {
        "batch_size": 16,
        "steps_per_update": 4,
        "learning_starts": 200,
        "capacity_steps": 700,
        "target_every": 20,
    },
    "replay": {"num_actors": 2},
    "envs": 8,
}
R2D2 = REPLAY | {
    "algo": "r2d2",
    "r2d2": REPLAY["apex"]  # type: ignore[operator]
    | {"length": 10, "burn_in": 5, "n_step": 3, "capacity_steps": 1200, "publish_every": 150},
}
del R2D2["apex"]


def without_ppo(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "ppo"}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "feed-forward, native": ("CartPole-v1", settings()),
    "gru, native": ("CartPole-v1", settings(policy=GRU)),
    "mean of weights": ("CartPole-v1", settings(policy=GRU, optimizer={"average_updates": 6})),
    "feed-forward, serial": ("LunarLander-v3", settings()),
    "feed-forward, walkers": ("BipedalWalker-v3", settings(**{"env.backend": "native"})),
    "gru, serial": ("LunarLander-v3", settings(policy=GRU)),
    "a2c, lstm, two actors": (
        "CartPole-v1",
        without_ppo(settings(policy=GRU | {"core": "lstm"}, **A2C)),
    ),
    "async, native": ("CartPole-v1", without_ppo(settings(**ASYNC))),
    "replay, native": ("CartPole-v1", without_ppo(settings(**REPLAY))),
    "replay, lstm, serial": (
        "LunarLander-v3",
        without_ppo(settings(policy=GRU | {"core": "lstm"}, **R2D2)),
    ),
    "central, rollouts": (
        "CartPole-v1",
        without_ppo(settings(policy=GRU, **A2C | {"formation": "central", "actors": 2})),
    ),
    "central, queue": (
        "CartPole-v1",
        without_ppo(
            settings(
                **{name: value for name, value in ASYNC.items() if name != "async"}
                | {
                    "formation": "central",
                    "central": {"num_actors": 3, "batch_envs": 3},
                    "envs": 9,
                }
            )
        ),
    ),
    "central, in turn": (
        "CartPole-v1",
        without_ppo(
            settings(
                **{name: value for name, value in ASYNC.items() if name != "async"}
                | {
                    "formation": "central",
                    "central": {"num_actors": 3, "batch_envs": 3, "max_batch_envs": 6},
                    "envs": 9,
                }
            )
        ),
    ),
    "central, steps": (
        "LunarLander-v3",
        without_ppo(
            settings(
                policy=GRU | {"core": "lstm"},
                **{name: value for name, value in R2D2.items() if name != "replay"}
                | {"formation": "central", "actors": 2},
            )
        ),
    ),
    "paramserver, native": (
        "CartPole-v1",
        settings(formation="paramserver", paramserver={"num_servers": 2}),
    ),
    "async, lstm, serial": (
        "LunarLander-v3",
        without_ppo(settings(policy=GRU | {"core": "lstm"}, **ASYNC)),
    ),
}

KILLED = """
import json, os, signal, sys
import rookery

env, path, settings, steps, last_words = json.loads(sys.argv[1])

def on_update(record):
    if record["steps"] > last_words:
        os.kill(os.getpid(), signal.SIGKILL)

rookery.train(env, run=path, steps=steps, on_update=on_update, **settings)
"""


def train_and_be_killed(env: str, path: Path, given: dict[str, Any], steps: int, at: int) -> None:
    """Train in a process of its own, which ``kill -9`` ends after ``at`` steps."""
    order = json.dumps([env, str(path), given, steps, at])
    child = subprocess.run([sys.executable, "-c", KILLED, order], capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert (path / "checkpoints" / "latest").exists(), "it should die after a checkpoint"


def bytes_of(run: Path) -> dict[str, bytes]:
    """Every file of the newest checkpoint that says how the run goes on."""
    latest = (run / "checkpoints" / "latest").resolve()
    unlike = ("manifest.json", "session.json")  # they hold times
    return {file.name: file.read_bytes() for file in latest.iterdir() if file.name not in unlike}


def records_of(run: Path) -> list[dict[str, Any]]:
    """All records without what a clock wrote."""
    timed = (
        *("wall_secs", "eval/saved_wall_secs", "time/"),
        *("fleet/", "inference/", "server/"),
    )
    return [
        {key: value for key, value in record.items() if not key.startswith(timed)}
        for record in read_metrics(run / "metrics.jsonl")
    ]


def assert_same_run(one: Path, other: Path) -> None:
    mine, theirs = bytes_of(one), bytes_of(other)
    assert sorted(mine) == sorted(theirs)
    assert {"weights.safetensors", "optimizer.safetensors"} <= set(mine)
    assert [name for name in mine if mine[name] != theirs[name]] == []
    assert records_of(one) == records_of(other)
    sessions = [
        load_checkpoint(run, "latest", ["session"]).parts["session"] for run in (one, other)
    ]
    assert sessions[0].data["window"] == sessions[1].data["window"]


REPEATS = ("gru, native", "feed-forward, serial", "gru, serial", "async, native", "replay, native")


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.long) if case in REPEATS else case for case in CASES],
)
def test_killed_and_resumed_is_never_stopped(case: str, tmp_path: Path) -> None:
    env, given = CASES[case]
    straight = rookery.train(env, run=tmp_path / "straight", steps=2000, **given)
    killed = tmp_path / "killed"
    train_and_be_killed(env, killed, given, steps=2000, at=1100)
    resumed = rookery.resume(killed)
    assert resumed.finish.updates == straight.finish.updates
    assert_same_run(straight.path, killed)
    if given.get("formation") == "async":
        last = [record for record in records_of(killed) if "train/lr" in record][-1]
        assert last["train/lag_mean"] > 0, "rollouts waited, also over the checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("core", [pytest.param("none", marks=pytest.mark.long), "gru"])
def test_more_steps_for_a_finished_run_is_a_longer_run(core: str, tmp_path: Path) -> None:
    given = settings(
        policy={"core": core, "core_size": 8}, eval={"episodes": 0, "every_steps": 700}
    )
    straight = rookery.train("CartPole-v1", run=tmp_path / "straight", steps=2000, **given)
    rookery.train("CartPole-v1", run=tmp_path / "halves", steps=1000, **given)
    halves = rookery.resume(tmp_path / "halves", steps=2000)
    assert halves.finish.steps == straight.finish.steps
    assert_same_run(straight.path, halves.path)


@pytest.mark.slow
def test_killed_twice(tmp_path: Path) -> None:
    env, given = CASES["feed-forward, native"]
    straight = rookery.train(env, run=tmp_path / "straight", steps=2000, **given)
    killed = tmp_path / "killed"
    train_and_be_killed(env, killed, given, steps=2000, at=500)
    halfway = rookery.resume(killed, steps=1200)
    assert halfway.finish.steps < 2000
    rookery.resume(killed, steps=2000)
    assert bytes_of(straight.path)["weights.safetensors"] == bytes_of(killed)["weights.safetensors"]


def test_a_checkpoint_with_its_evaluation_left_to_do(tmp_path: Path) -> None:
    """Killed between the last update and the last evaluation: only the evaluation is made up."""
    given = settings(eval={"episodes": 2, "every_steps": None}, save_every=250)
    straight = rookery.train("CartPole-v1", run=tmp_path / "straight", steps=600, **given)
    killed = tmp_path / "killed"
    rookery.train("CartPole-v1", run=killed, steps=600, **given)
    metrics = killed / "metrics.jsonl"
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[:-1]))
    status = json.loads((killed / "status.json").read_text())
    (killed / "status.json").write_text(json.dumps(status | {"state": "running", "pid": 2**22 + 1}))
    resumed = rookery.resume(killed)
    assert resumed.finish.updates == straight.finish.updates, "not one update more"
    assert_same_run(straight.path, killed)
