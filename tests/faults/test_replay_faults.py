"""Real kill -9 of every role of formation replay."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.cli.main import main
from rookery.roles.replay_learner import carried_over
from rookery.runs.find import load_checkpoint
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.faults.test_local_faults import SLOW_STEPS, WORLD, finish

pytestmark = pytest.mark.slow

SMALL = (
    "--algo", "apex", "--engine", "local", "--actors", "2", "--envs", "4",
    "--log-every", "100", "--save-every", "400", "--eval.episodes", "0", "--stop-at", "none",
    "--apex.batch_size", "16", "--apex.learning_starts", "100", "--apex.capacity_steps", "2000",
    "--apex.steps_per_update", "8",
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)


def trained(run: Path, *flags: str) -> subprocess.Popen[str]:
    """A run that has saved its replay at least once."""
    process = p.start(run, WORLD, *SMALL, *SLOW_STEPS, *flags)
    p.until(lambda: list((run / "replay").glob("*.json")), "a snapshot")
    return process


def replaced(run: Path, name: str) -> None:
    """Kill a member; wait for the next of its name."""
    before = p.members(run)
    p.kill(before[name])
    p.until(lambda: p.members(run).get(name) not in (None, before[name]), f"a new {name}")
    now = p.members(run)
    assert all(now[other] == before[other] for other in before if other != name)


def test_a_killed_replay_goes_on_from_its_snapshot(run: Path) -> None:
    process = trained(run, "--steps", "3000")
    replaced(run, "replay-0")
    code, errors = finish(process)
    assert code == 0, errors
    assert "replay-0: killed by SIGKILL; replaced" in errors
    log = (run / "logs" / "replay-0.log").read_text()
    said = re.search(
        r"replay goes on with \S+ steps from its snapshot at step (.*) are lost", errors
    )
    assert said is not None, errors
    assert said[0] in log
    lost = int(said[1].rpartition("the ")[2].split()[0].replace(",", ""))
    assert 0 <= lost < 3000
    records = read_metrics(run / "metrics.jsonl")
    steps = [record["steps"] for record in records]
    assert steps == sorted(steps), "no step is counted twice"
    assert records[-1]["fleet/restarts"] == 1
    assert records[-1]["steps"] >= 3000


def test_a_replay_killed_before_its_first_snapshot_takes_all_back(run: Path) -> None:
    """A trained policy fills an empty table with little but what it does best."""
    process = p.start(run, WORLD, *SMALL, *SLOW_STEPS, "--steps", "1200", "--save-every", "1100")
    p.until(lambda: any("train/loss" in record for record in p.records(run)), "an update")
    p.kill(p.members(run)["replay-0"])
    code, errors = finish(process)
    assert code == 0, errors
    assert "replay-0: killed by SIGKILL; replaced" in errors
    assert (
        "replay-0: there is no snapshot of what it held; the fleet begins again, there is no "
        "checkpoint yet"
    ) in errors
    steps = [record["steps"] for record in read_metrics(run / "metrics.jsonl")]
    assert steps == sorted(steps), "no step is counted twice"


def test_a_killed_actor_is_replaced(run: Path) -> None:
    process = trained(run, "--steps", "3000")
    replaced(run, "actor-1")
    code, errors = finish(process)
    assert code == 0, errors
    assert "actor-1: killed by SIGKILL; replaced" in errors
    lengths = {record.get("rollout/length_mean") for record in p.records(run)}
    assert lengths - {None} == {10.0}, "no episode is joined to another's beginning"


CURIOUS = (
    "--algo", "agent57", "--engine", "local", "--actors", "2", "--envs", "4", "--log-every", "100",
    "--save-every", "200", "--eval.episodes", "0", "--stop-at", "none", "--agent57.length", "1",
    "--agent57.burn_in", "0", "--agent57.batch_size", "16", "--agent57.learning_starts", "100",
    "--agent57.capacity_steps", "2000", "--agent57.steps_per_update", "8",
    "--agent57.family.num_arms", "3", "--agent57.family.window", "5000",
    "--agent57.novelty.capacity", "20",
)  # fmt: skip


def games(run: Path) -> list[int]:
    """How many games the bandits of each actor remember, by the newest checkpoint."""
    parts = load_checkpoint(run, "latest").parts
    left = [state for actor in range(2) if (state := carried_over(parts, actor))]
    return [int((state["arms/played"] >= 0).sum()) for state in left]


def test_a_new_actor_goes_on_with_the_bandits_of_the_one_before(run: Path) -> None:
    process = p.start(run, WORLD, *CURIOUS, *SLOW_STEPS, "--steps", "1000000")
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    p.until(lambda: len(found := games(run)) == 2 and min(found) > 10, "games of both actors")
    replaced(run, "actor-1")
    log = run / "logs" / "actor-1.log"
    p.until(lambda: "actor-1 goes on with what the one before it knew" in log.read_text(), "it")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    # All are new, and know what those of the checkpoint knew.
    saved, steps = games(run), load_checkpoint(run, "latest", ["session"]).steps
    assert main(["resume", str(run), "--steps", str(steps + 1000), "--quiet"]) == 0
    assert all(now >= then for now, then in zip(games(run), saved, strict=True))
    assert sum(games(run)) > sum(saved)


def test_what_actors_knew_in_one_thread_they_know_in_processes(run: Path) -> None:
    inline = ["--engine", "inline", "--steps", "400", "--run", str(run), "--quiet"]
    assert main(["train", WORLD, *CURIOUS, *inline]) == 0
    saved = games(run)
    assert main(["resume", str(run), "--engine", "local", "--steps", "900", "--quiet"]) == 0
    assert "actor-1 goes on with what the one" in (run / "logs" / "actor-1.log").read_text()
    assert min(saved) >= 10
    assert all(now >= then for now, then in zip(games(run), saved, strict=True))
    assert sum(games(run)) > sum(saved)


FREE = ("--replay.lockstep", "false")


@pytest.mark.parametrize(
    ("flags", "killed"),
    [
        (("--learners", "1"), "learner-0"),
        pytest.param(("--learners", "2"), "learner-1", marks=pytest.mark.long),
        pytest.param(("--learners", "2", *FREE), "learner-0", marks=pytest.mark.long),
        pytest.param(("--learners", "2", *FREE), "learner-1", marks=pytest.mark.long),
    ],
)
def test_a_killed_learner_takes_the_fleet_back_to_the_checkpoint(
    run: Path, flags: tuple[str, ...], killed: str
) -> None:
    process = trained(run, "--steps", "3000", *flags)
    p.kill(p.members(run)[killed])
    code, errors = finish(process)
    assert code == 0, errors
    assert "the fleet goes back to the checkpoint at step " in errors
    assert "going on from step" in (run / "logs" / "learner-0.log").read_text()
    assert "from its snapshot at step" in (run / "logs" / "replay-0.log").read_text()


def test_a_killed_driver_leaves_nobody(run: Path) -> None:
    process = trained(run, "--steps", "1000000")
    assert len(p.members(run)) == 4
    process.kill()
    process.wait()
    p.until(lambda: not p.members(run), "the children to die", timeout_secs=10)


@pytest.mark.parametrize(
    "flags", [pytest.param((), marks=pytest.mark.long), ("--learners", "2", *FREE)]
)
def test_ctrl_c_ends_with_a_checkpoint_and_it_resumes(run: Path, flags: tuple[str, ...]) -> None:
    process = trained(run, "--steps", "1000000", *flags)
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    assert not p.members(run)
    saved = load_checkpoint(run, "latest")
    assert saved.parts["learner"].data["steps"] == saved.steps
    words = ["resume", str(run), "--steps", str(saved.steps + 400), "--quiet"]
    assert main(words) == 0
    assert load_checkpoint(run, "latest").steps >= saved.steps + 400
