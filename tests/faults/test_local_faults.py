"""Real kill -9 of every role under the local engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rookery.core.patience import STOOD_STILL_SECS
from rookery.runs.find import load_checkpoint
from tests.faults import processes as p
from tests.forks import forked

pytestmark = pytest.mark.slow

WORLD = "tests.faults.fault_worlds:Plain"
SMALL = (
    "--engine", "local", "--actors", "2", "--envs", "4", "--ppo.rollout_steps", "20",
    "--ppo.num_minibatches", "1", "--ppo.num_epochs", "1", "--log-every", "80",
    "--save-every", "400", "--eval.episodes", "0", "--stop-at", "none",
)  # fmt: skip
SLOW_STEPS = ("--env.kwargs", "{step_secs: 0.002}")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)


def finish(process: subprocess.Popen[str], timeout: float = p.PATIENCE_SECS) -> tuple[int, str]:
    _, errors = process.communicate(timeout=timeout)
    return process.returncode, errors


def trained(run: Path, *flags: str) -> subprocess.Popen[str]:
    """A run that has written a checkpoint and goes on."""
    process = p.start(run, WORLD, *SMALL, *SLOW_STEPS, *flags)
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    return process


def test_killed_actor_is_replaced_and_the_run_goes_on(run: Path) -> None:
    process = trained(run, "--steps", "4000")
    before = p.members(run)
    assert {"actor-0", "actor-1", "learner-0"} <= set(before)
    p.kill(before["actor-1"])
    replaced = p.until(
        lambda: p.members(run).get("actor-1") not in (None, before["actor-1"]), "a new actor-1"
    )
    assert replaced
    assert p.members(run)["actor-0"] == before["actor-0"], "the others are left alone"
    code, errors = finish(process)
    assert code == 0, errors
    assert "actor-1: killed by SIGKILL; replaced" in errors
    last = list(p.records(run))[-1]
    assert last["steps"] >= 3900
    assert last["fleet/restarts"] == 1


def test_actor_killed_too_often_stops_the_run(run: Path) -> None:
    process = trained(run, "--steps", "1000000", "--supervise.max_restarts", "1")
    for _ in range(2):
        pid = p.until(lambda: p.members(run).get("actor-0"), "actor-0")
        p.kill(pid)
        p.until(lambda pid=pid: p.members(run).get("actor-0") != pid, "its end")
    code, errors = finish(process)
    assert code == 4
    assert "actor-0 ended more than 1 times" in errors
    assert "rookery resume" in errors
    assert not p.everyone(run)


def test_a_recorder_killed_too_often_is_missed_and_the_run_goes_on(run: Path) -> None:
    process = trained(
        run, "--steps", "6000", "--supervise.max_restarts", "1", "--record.episodes", "1",
        "--record.wait_secs", "1",
    )  # fmt: skip
    for _ in range(2):
        pid = p.until(lambda: p.members(run).get("recorder-0"), "recorder-0")
        p.kill(pid)
        p.until(lambda pid=pid: p.members(run).get("recorder-0") != pid, "its end")
    code, errors = finish(process)
    assert code == 0, errors
    assert "recorder-0 ended more than 1 times" in errors
    assert "the run goes on without it" in errors
    assert list(p.records(run))[-1]["steps"] >= 5900
    assert not p.everyone(run)


def test_killed_learner_goes_on_from_its_checkpoint(run: Path) -> None:
    process = trained(run, "--steps", "3000")
    p.kill(p.members(run)["learner-0"])
    code, errors = finish(process)
    assert code == 0, errors
    assert "the fleet goes back to the checkpoint at step " in errors
    written = [record["steps"] for record in p.records(run)]
    assert written == sorted(written), "the metrics were cut to the checkpoint"
    assert written[-1] >= 2900
    assert "going on from step" in (run / "logs" / "learner-0.log").read_text()


def test_killed_driver_leaves_nothing(run: Path) -> None:
    process = trained(run, "--steps", "1000000")
    assert len(p.members(run)) == 3
    process.kill()
    process.wait()
    p.until(lambda: not p.everyone(run), "the children to die", timeout_secs=10)


def test_killed_driver_takes_a_child_stuck_in_c_with_it(run: Path, tmp_path: Path) -> None:
    marker = tmp_path / "stuck"
    process = p.start(
        run, "tests.faults.fault_worlds:HangsInC", *SMALL,
        "--env.kwargs", f"{{marker: '{marker}'}}", "--steps", "1000000",
    )  # fmt: skip
    p.until(marker.exists, "an actor to be stuck")
    process.kill()
    process.wait()
    p.until(lambda: not p.everyone(run), "the children to die", timeout_secs=10)


def test_ctrl_c_ends_with_a_checkpoint(run: Path) -> None:
    process = trained(run, "--steps", "1000000")
    process.send_signal(signal.SIGINT)
    code, errors = finish(process)
    assert code == 130, errors
    assert not p.everyone(run)
    saved = load_checkpoint(run, "latest")
    assert saved.parts["learner"].data["steps"] == saved.steps
    assert json.loads((run / "status.json").read_text())["state"] == "interrupted"


@pytest.mark.parametrize("flags", [(), ("--engine", "inline", "--env.backend", "process")])
def test_sigterm_to_the_whole_job_ends_with_a_checkpoint(run: Path, flags: Sequence[str]) -> None:
    """As by `timeout`, systemd and Slurm: everybody gets it, and only the driver acts on it."""
    process = trained(run, "--steps", "1000000", *flags)
    before = p.steps(run)
    os.killpg(process.pid, signal.SIGTERM)
    code, errors = finish(process)
    assert code == 143, errors
    assert "killed by" not in errors
    assert load_checkpoint(run).steps >= before


def test_a_learner_killed_before_the_first_save_goes_back_to_where_the_sitting_began(
    run: Path,
) -> None:
    """Not to the newest checkpoint, which is of a sitting that was given up."""
    process = trained(run, "--steps", "1600", "--checkpoint.keep", "9")
    assert finish(process)[0] == 0
    first = min(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdigit())
    old = run / "checkpoints" / f"{first:012d}"
    again = forked(
        *("resume", str(old), "--steps", "3200", "--save-every", "1000000"),
        cwd=p.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    log = run / "logs" / "learner-0.log"
    p.until(lambda: f"going on from step {first}" in log.read_text(), "the new sitting")
    p.kill(p.members(run)["learner-0"])
    code, errors = finish(again)
    assert code == 0, errors
    assert log.read_text().count(f"going on from step {first}") == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_at_once(run: Path, number: signal.Signals, code: int) -> None:
    process = trained(run, "--steps", "1000000")
    # A stopped learner cannot end properly, so only the second signal can end the run.
    os.kill(p.members(run)["learner-0"], signal.SIGSTOP)
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(number)
    found, errors = finish(process, timeout=10)
    assert found == code, errors
    assert "Traceback" not in errors
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("interrupted", number.name)
    assert not p.everyone(run)
    load_checkpoint(run, "latest")


def test_exception_in_an_environment_stops_the_run_with_one_line(run: Path) -> None:
    process = p.start(run, "tests.faults.fault_worlds:Raises", *SMALL, "--steps", "100000")
    code, errors = finish(process)
    assert code == 3
    told = [line for line in errors.splitlines() if line.startswith("rookery:")]
    assert len(told) == 1
    assert "ValueError: the pole is on fire" in told[0]
    assert "actor-" in told[0]
    assert ".log" in told[0]
    assert "Traceback" not in errors
    log = next(run.glob("logs/actor-*.log"))
    assert any("Traceback" in path.read_text() for path in run.glob("logs/*.log")), log
    assert not p.everyone(run)


def test_hanging_environment_is_found_out_by_the_driver(run: Path, tmp_path: Path) -> None:
    marker = tmp_path / "stuck"
    process = p.start(
        run, "tests.faults.fault_worlds:HangsInC", *SMALL, "--env.step_timeout_secs", "2",
        "--env.kwargs", f"{{marker: '{marker}'}}", "--steps", "1000000",
    )  # fmt: skip
    code, errors = finish(process)
    assert code == 3
    assert "hung in its environment past 2 s" in errors
    assert "env.step_timeout_secs" in errors
    assert not p.everyone(run)


def test_hanging_environment_is_replaced_when_asked(run: Path, tmp_path: Path) -> None:
    marker = tmp_path / "stuck"
    process = p.start(
        run, "tests.faults.fault_worlds:HangsInC", *SMALL, "--env.step_timeout_secs", "2",
        "--env.on_env_error", "restart", "--env.kwargs", f"{{marker: '{marker}'}}",
        "--steps", "2000",
    )  # fmt: skip
    code, errors = finish(process)
    assert code == 0, errors
    assert "hung in its environment" in errors
    assert marker.exists()


def fork_server_of(run: Path, other_than: int = 0) -> int:
    """Who starts the run's processes, once it has started the learner: the parent of that, as a
    process that has just been forked still has the fork server's title."""

    def server() -> int | None:
        learner = p.members(run).get("learner-0")
        found = None if learner is None else p.parent(learner)
        return found if found != other_than and "fork-server" in p.title(found) else None

    return int(p.until(server, "a fork server"))


def test_killed_fork_server_takes_the_fleet_back_to_the_last_checkpoint(run: Path) -> None:
    process = trained(run, "--steps", "3000")
    before, server = p.members(run), fork_server_of(run)
    assert p.everyone(run)["fork-server"] == server
    p.kill(server)
    p.until(lambda: set(before.values()).isdisjoint(p.members(run).values()), "all to be new")
    code, errors = finish(process)
    assert code == 0, errors
    told = "fork server: killed by SIGKILL, and every process with it; the fleet goes back to the"
    assert errors.count(told) == 1
    assert "replaced" not in errors, "one death, not four"
    written = [record["steps"] for record in p.records(run)]
    assert written == sorted(written), "the metrics were cut to the checkpoint"
    assert list(p.records(run))[-1]["fleet/restarts"] == 1
    assert not p.everyone(run)


def test_fork_server_killed_too_often_stops_the_run(run: Path) -> None:
    process = trained(run, "--steps", "1000000", "--supervise.max_restarts", "1")
    first = fork_server_of(run)
    p.kill(first)
    p.kill(fork_server_of(run, other_than=first))
    code, errors = finish(process)
    assert code == 4
    assert "fork server ended more than 1 times" in errors
    assert "rookery resume" in errors
    assert not p.everyone(run)


def test_stopped_fork_server_is_found_out(run: Path) -> None:
    process = trained(run, "--steps", "3000")
    os.kill(fork_server_of(run), signal.SIGSTOP)
    p.kill(p.members(run)["actor-0"])
    code, errors = finish(process)
    assert code == 0, errors
    assert "fork server: killed by SIGKILL" in errors
    assert not p.everyone(run)


def test_a_run_that_was_suspended_goes_on(run: Path) -> None:
    """Stopped as a whole for longer than a step may take, in the middle of steps."""
    process = p.start(
        run, WORLD, *SMALL, "--env.kwargs", "{step_secs: 0.02}", "--env.step_timeout_secs", "1",
        "--steps", "1200",
    )  # fmt: skip
    p.until(lambda: len(list(p.records(run))) > 1, "a record")
    everyone = [process.pid, *p.everyone(run).values()]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STOOD_STILL_SECS + 3.0)
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    code, errors = finish(process)
    assert code == 0, errors
    assert "hung" not in errors
    assert "replaced" not in errors
