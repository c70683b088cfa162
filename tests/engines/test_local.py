"""The local engine with real processes: results, callbacks, resume, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery.carriers.shared_memory import SharedArena
from rookery.core.spec import ArraySpec
from tests.faults import processes as p

SMALL: dict[str, Any] = {
    "engine": "local",
    "actors": 2,
    "envs": 4,
    "stop_at": None,
    "ppo": {"rollout_steps": 20, "num_epochs": 1, "num_minibatches": 1},
}


def records(run: rookery.Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_callbacks_run_in_the_driver_and_can_stop_the_run(tmp_path: Path) -> None:
    seen: dict[str, list[Any]] = {"update": [], "episode": [], "evaluation": []}

    def on_update(record: dict[str, Any]) -> None:
        seen["update"].append(record["steps"])
        if len(seen["update"]) == 3:
            raise rookery.StopRun("seen enough")

    run = rookery.train(
        "CartPole-v1",
        run=tmp_path / p.own_name(),
        steps=1_000_000,
        log_every=400,
        eval={"episodes": 2, "every_steps": 400},
        on_update=on_update,
        on_episode=seen["episode"].append,
        on_evaluation=seen["evaluation"].append,
        **SMALL,
    )
    assert run.finish.outcome.state == "stopped"
    assert run.finish.outcome.reason == "seen enough"
    assert run.finish.steps < 100_000
    assert {"return", "length", "steps"} == set(seen["episode"][0])
    assert seen["evaluation"], "the evaluator's process reports too"
    assert not p.everyone(run.path)
    last = [record for record in records(run) if "fleet/actors" in record][-1]
    assert last["fleet/actors"] == 2
    assert 0 <= last["fleet/actor_wait_share"] <= 1
    assert 0 <= last["fleet/learner_wait_share"] <= 1
    assert 0 <= last.get("fleet/evaluator_wait_share", 0.0) <= 1


@pytest.mark.slow
def test_resume_with_another_number_of_actors_and_another_engine(tmp_path: Path) -> None:
    settings = SMALL | {"eval": {"episodes": 0}}
    run = rookery.train("CartPole-v1", run=tmp_path / "run", steps=800, **settings)
    run = rookery.resume(run.path, steps=1600, actors=1)
    assert run.finish.steps >= 1600
    run = rookery.resume(run.path, steps=2400, engine="inline")
    assert run.finish.steps >= 2400
    assert run.evaluate(episodes=2)["episodes"] == 2


@pytest.mark.slow
def test_unguarded_script_trains_under_local(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import rookery\n"
        f"run = rookery.train('CartPole-v1', steps=300, run=r'{tmp_path / 'run'}', actors=1,\n"
        "    engine='local', envs=2, eval={'episodes': 0},\n"
        "    ppo={'rollout_steps': 20, 'num_minibatches': 1})\n"
        "print('steps', run.finish.steps)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("steps") == 1, "the script's body must not run in children"


def test_shared_arena_has_no_name_and_is_seen_by_others() -> None:
    before = p.shared_memory()
    import numpy as np

    specs = {
        "a": ArraySpec((3, 5), np.dtype(np.float32)),
        "b": ArraySpec((), np.dtype(np.int64)),
        "c": ArraySpec((7,), np.dtype(np.bool_)),
    }
    arena = SharedArena.create(specs)
    other = SharedArena(arena.descriptor, specs)
    arena.arrays["a"][1, 2] = 4.0
    arena.arrays["c"][6] = True
    other.arrays["b"][...] = 9
    assert other.arrays["a"][1, 2] == 4.0
    assert other.arrays["c"].tolist() == [False] * 6 + [True]
    assert int(arena.arrays["b"]) == 9
    p.until(lambda: p.shared_memory() <= before, "shared memory to be gone", timeout_secs=10)
    arena.close()
