"""What a run takes in memory: told before it begins, refused if there is not so much, and true."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rookery.algos.algorithm import algorithm_names
from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.core.spec import LeafSpec
from rookery.doctor.run_memory import check_memory, memory_note
from rookery.formations.settings import formation_names
from rookery.programs.memory import PROCESS_BYTES, Needs, estimate
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_flags, settings_from_python
from rookery.runs.config import divided
from rookery.training import check

FLOATS = LeafSpec("box", (4,), np.dtype(np.float32))
SIGNATURE = Signature(
    obs={"obs": FLOATS}, action=LeafSpec("discrete", (), np.dtype(np.int64), (2,))
)
REPOSITORY = Path(__file__).resolve().parents[2]


def plan_of(signature: Signature = SIGNATURE, **given: Any) -> Plan:
    config, _ = divided(settings_from_python("CartPole-v1", given))
    return Plan.of(config, signature)


def refusal(plan: Plan, free_bytes: int, **given: Any) -> str:
    with pytest.raises(UserError) as refused:
        check_memory(plan, estimate(plan), free_bytes=free_bytes, **given)
    return str(refused.value)


# --- the truth -----------------------------------------------------------------------------------

MEASURED = """
import re, sys
from pathlib import Path
from rookery.cli.main import main
assert main(sys.argv[1:]) == 0
# Not ru_maxrss: that begins with what the process had that started this one.
print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""
OWN = "tests.unit.memory_worlds"
RUNS = {
    "rollouts": ["cartpole", "--ppo.rollout_steps", "3000", "--ppo.num_minibatches", "1"],
    "replay": [f"{OWN}:Wide", "--algo", "dqn", "--dqn.capacity_steps", "4000", "--steps", "4400"],
    "images": [
        *(f"{OWN}:Frames", "--envs", "16", "--ppo.rollout_steps", "64"),
        *("--ppo.num_minibatches", "1", "--ppo.num_epochs", "1", "--steps", "1024"),
        *("--policy.precision", "fp32"),  # auto goes by what is faster at the moment
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_takes_what_was_told(name: str, tmp_path: Path) -> None:
    words = [*RUNS[name], "--eval.episodes", "0"]
    if "--steps" not in words:
        words += ["--steps", "96000", "--stop-at", "none"]
    flags = {
        key.removeprefix("--").replace("-", "_"): value
        for key, value in zip(words[1::2], words[2::2], strict=True)
    }
    told = estimate(check(settings_from_flags(words[0], flags)))
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "train", *words, "--run", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert f"memory: about {told}" in done.stderr
    measured = int(done.stdout.split()[-1])
    assert told.total - PROCESS_BYTES > 100e6, "what is told of is more than a process"
    assert 0.5 < told.total / measured < 1.7, (str(told), measured)


RECURRENT = {"r2d2", "ngu", "agent57"}

# --- what is counted -----------------------------------------------------------------------------


def test_every_formation_and_algorithm_has_an_estimate() -> None:
    for algo in algorithm_names():
        needs = estimate(
            plan_of(algo=algo, policy={"core": "lstm" if algo in RECURRENT else "none"})
        )
        assert needs.parts["processes"] == PROCESS_BYTES
        assert needs.parts["update"] > 0, algo
    for formation in {*formation_names()} - {"replay"}:
        algo = "impala" if formation == "async" else "ppo"
        small, large = (
            estimate(
                plan_of(formation=formation, algo=algo, **{algo: {"rollout_steps": steps}})
            ).parts
            for steps in (128, 1280)
        )
        assert large["rollouts"] > 5 * small["rollouts"], formation
        assert large["update"] > 5 * small["update"], formation


def test_processes_count() -> None:
    alone, four = estimate(plan_of()), estimate(plan_of(engine="local"))
    # A driver, a fork server, an actor, a learner and an evaluator.
    assert (alone.parts["processes"], four.parts["processes"]) == (PROCESS_BYTES, 5 * PROCESS_BYTES)


def test_the_network_is_left_as_it_is() -> None:
    plan = plan_of(policy={"normalize_obs": True})
    before = {name: tensor.clone() for name, tensor in plan.network.state_dict().items()}
    estimate(plan)
    assert all((plan.network.state_dict()[name] == was).all() for name, was in before.items())


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["inline", "local"])
@pytest.mark.parametrize("steps", [1_000_000, 100_000_000])
def test_rollouts_that_do_not_fit_are_refused_with_those_that_do(engine: str, steps: int) -> None:
    def plan(rollout_steps: int) -> Plan:
        return plan_of(engine=engine, ppo={"rollout_steps": rollout_steps})

    told = refusal(plan(steps), 4_000_000_000)
    assert "the run takes about " in told
    assert "and 4 GB are free; --ppo.rollout_steps " in told
    fits = int(told.partition("rollout_steps ")[2].split()[0])
    check_memory(plan(fits), estimate(plan(fits)), free_bytes=4_000_000_000)
    refusal(plan(int(1.1 * fits)), 4_000_000_000)


def test_the_command_refuses_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--ppo.rollout_steps", "10000000000"]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "TB (update " in told
    assert "--ppo.rollout_steps" in told


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_replay_that_does_not_fit_is_refused_with_one_that_does(engine: str) -> None:
    def plan(capacity: int) -> Plan:
        dqn = {"capacity_steps": capacity, "batch_size": 5000}
        return plan_of(algo="dqn", engine=engine, dqn=dqn)

    free = estimate(plan(20_000_000)).total // 2
    told = refusal(plan(20_000_000), free)
    assert "would fit" in told
    fits = int(told.partition("--dqn.capacity_steps ")[2].split()[0])
    check_memory(plan(fits), estimate(plan(fits)), free_bytes=free)


def test_batches_that_do_not_fit_are_told_of() -> None:
    dqn = {"capacity_steps": 4_000_000, "batch_size": 3_000_000}
    told = refusal(plan_of(algo="dqn", engine="local", dqn=dqn), 2_500_000_000)
    assert "--dqn.batch_size " in told


def test_where_no_setting_alone_helps_several_are_named() -> None:
    told = refusal(plan_of(ppo={"rollout_steps": 1_000_000}), 100_000_000)
    assert told.endswith("lower --envs, --actors, --ppo.rollout_steps or --policy.hidden")


def test_on_several_hosts_the_largest_process_must_fit() -> None:
    plan = plan_of(engine="mpi", ppo={"rollout_steps": 1_000_000})
    needs = estimate(plan)
    assert needs.largest < needs.total
    check_memory(plan, needs, free_bytes=int(needs.largest / 0.85), one_host=False)
    assert "its largest process " in refusal(plan, needs.largest, one_host=False)


# --- told ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_is_told_before_a_run_and_before_it_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    words = ["CartPole-v1", "--algo", "dqn", "--steps", "200", "--eval.episodes", "0"]
    for command in (["train", *words, "--run", run], ["resume", run, "--steps", "300"]):
        assert main(command) == 0
        assert "memory: about " in capsys.readouterr().err


def test_plan_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "cartpole"]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith("memory: about 1")
    assert "processes 160 MB" in told


def test_images_that_may_not_compress_are_told_of() -> None:
    images = LeafSpec("box", (24, 24, 3), np.dtype(np.uint8))
    needs = estimate(plan_of(replace(SIGNATURE, obs={"obs": images}), algo="dqn"))
    assert "if its images compress as well as Atari's, " in memory_note(needs)
    assert memory_note(needs).endswith("if they do not compress at all")


def test_small_parts_are_not_told() -> None:
    assert str(Needs({"replay": 2_390_000_000_000, "weights": 9}, 9, 9)) == (
        "2.39 TB (replay 2.39 TB)"
    )
