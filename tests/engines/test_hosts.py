"""Hosts that join a run: real heads, real `rookery join`, real sockets of this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.runs.find import load_checkpoint
from rookery.runs.head_address import HeadAddress, read_head_address
from rookery.runs.metrics import read_metrics
from tests.faults import processes as p
from tests.forks import forked

pytestmark = pytest.mark.slow

WORLD = "tests.faults.fault_worlds:Plain"
SLOW_STEPS = ("--env.kwargs", "{step_secs: 0.002}")
COMMON = ("--envs", "4", "--eval.episodes", "0", "--stop-at", "none", "--policy.hidden", "[16]")
ROLLOUTS = (
    *COMMON, "--log-every", "80", "--save-every", "400",
)  # fmt: skip
REPLAY = (
    *COMMON, "--algo", "apex", "--log-every", "100", "--save-every", "400",
    "--apex.batch_size", "16", "--apex.learning_starts", "100", "--apex.capacity_steps", "10000",
    "--apex.steps_per_update", "8",
)  # fmt: skip
SYNC = (
    *ROLLOUTS, "--ppo.rollout_steps", "20", "--ppo.num_minibatches", "1", "--ppo.num_epochs", "1",
)  # fmt: skip
ASYNC = (*ROLLOUTS, "--algo", "impala", "--formation", "async", "--impala.rollout_steps", "20")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    yield from p.own_run(tmp_path)
    while STARTED:  # those of a test that has failed
        STARTED.pop().kill()


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


STARTED: list[subprocess.Popen[str]] = []


class Head:
    """A run that listens."""

    def __init__(
        self,
        run: Path,
        port: int,
        *flags: str,
        resume: bool = False,
        world: str = WORLD,
        env: dict[str, str] | None = None,
    ) -> None:
        self.run, self.address = run, f"127.0.0.1:{port}"
        self.log = run.with_suffix(".errors")
        with self.log.open("w") as errors:
            if resume:
                words = ["resume", str(run), *flags, "--plain"]
            else:
                flags = (*flags, "--listen", self.address)
                words = ["train", world, *flags, "--run", str(run), "--plain"]
            self.process = forked(
                *words,
                cwd=p.ROOT,
                env=os.environ | (env or {}),
                stderr=errors,
                start_new_session=True,
            )
        STARTED.append(self.process)
        p.until(lambda: "join by" in self.said() or self.process.poll() is not None, "the head")

    def said(self) -> str:
        return self.log.read_text()

    def hears(self, words: str) -> None:
        p.until(lambda: words in self.said(), f"'{words}' in {self.said()}")

    def ends(self, code: int = 0) -> str:
        self.process.wait(p.PATIENCE_SECS)
        assert self.process.returncode == code, self.said()
        return self.said()

    def join(
        self,
        actors: int = 2,
        *flags: str,
        token: str | None = None,
        env: dict[str, str] | None = None,
    ) -> Joined:
        token = token or (self.run / "token").read_text().strip()
        return Joined(self, actors, flags, {"ROOKERY_TOKEN": token} | (env or {}))


class Joined:
    """A host."""

    count = 0

    def __init__(
        self, head: Head, actors: int, flags: tuple[str, ...], env: dict[str, str]
    ) -> None:
        Joined.count += 1
        self.directory = head.run.with_name(f"{head.run.name}-host-{Joined.count}")
        words = ["join", head.address, "--actors", str(actors), "--logs", str(self.directory)]
        self.process = forked(
            *words,
            *flags,
            cwd=p.ROOT,
            env=os.environ | env,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        STARTED.append(self.process)

    def ends(self, code: int = 0) -> str:
        _, errors = self.process.communicate(timeout=p.PATIENCE_SECS)
        assert self.process.returncode == code, errors
        assert not p.everyone(self.directory)
        return errors

    def actors(self) -> dict[str, int]:
        return p.members(self.directory)


SERVERS = ("--formation", "paramserver", "--paramserver.num_servers", "2")
FORMATIONS = {
    "replay": (*REPLAY, "--actors", "1"),
    "async": (*ASYNC, "--actors", "1"),
    "sync": (*SYNC, "--actors", "2", "--places", "1"),
    "central": (*REPLAY, "--formation", "central", "--actors", "1"),
    "central, rounds": (
        *SYNC,
        "--formation",
        "central",
        "--actors",
        "2",
        "--places",
        "1",
    ),
    "allreduce": (*SYNC, "--formation", "allreduce", "--actors", "2", "--places", "1"),
    "paramserver": (*SYNC, *SERVERS, "--actors", "1", "--policy.normalize_obs", "true"),
    "paramserver, async": (*SYNC, *SERVERS, "--actors", "1", "--paramserver.mode", "async"),
}


@pytest.mark.parametrize("formation", FORMATIONS)
def test_a_host_takes_part_and_ends_with_the_run(formation: str, run: Path, port: int) -> None:
    head = Head(run, port, *FORMATIONS[formation], *SLOW_STEPS, "--steps", "3000")
    host = head.join(1)
    said = host.ends()
    assert "the run is over: 3000 steps reached" in said, said
    errors = head.ends()
    assert re.search(r"host \S+ joined with 1 actor", errors), errors
    records = read_metrics(run / "metrics.jsonl")
    assert records[-1]["fleet/hosts"] == 1
    assert records[-1]["fleet/joined_actors"] == 1
    lengths = {record.get("rollout/length_mean") for record in records}
    assert lengths - {None} == {10.0}, "no episode is joined to another's beginning"
    token = (run / "token").read_text().strip()
    assert (run / "token").stat().st_mode & 0o777 == 0o600
    written = [path for path in run.rglob("*") if path.is_file() and path.name != "token"]
    assert not [path for path in written if token.encode() in path.read_bytes()]


def test_who_acts_only_elsewhere(run: Path, port: int) -> None:
    """`--actors 0` waits for others; the batch stays as the recipe says."""
    head = Head(run, port, *REPLAY, "--actors", "0", "--steps", "600")
    host = head.join(2)
    assert "the run is over" in host.ends()
    head.ends()
    assert read_metrics(run / "metrics.jsonl")[-1]["fleet/actors"] == 2


def test_a_host_that_sees_the_run_directory_needs_nothing_else(run: Path, port: int) -> None:
    """And may be there before the head."""
    run.mkdir()
    logs = run.with_name(f"{run.name}-host")
    words = ["join", "--run", str(run), "--actors", "1", "--logs", str(logs)]
    host = forked(*words, cwd=p.ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    STARTED.append(host)
    token = run.with_suffix(".token")
    token.write_text("a-token-that-nobody-prints")
    token.chmod(0o600)
    head = Head(run, port, *REPLAY, "--steps", "1000000", "--token-file", str(token))
    head.hears("joined with 1 actors")
    assert f"--token-file {token}" in head.said()
    assert "a-token-that-nobody-prints" not in head.said()
    told = read_head_address(run)
    assert told == HeadAddress(address=head.address)
    head.process.send_signal(signal.SIGINT)
    head.ends(130)
    assert read_head_address(run) is None
    host.send_signal(signal.SIGINT)
    _, errors = host.communicate(timeout=p.PATIENCE_SECS)
    assert host.returncode == 130, errors
    assert f"no head of {run} listens yet; trying again" in errors


def test_whoever_dies_is_replaced_or_comes_back(run: Path, port: int) -> None:
    head = Head(run, port, *REPLAY, *SLOW_STEPS, "--actors", "1", "--steps", "1000000")
    host = head.join(2)
    head.hears("joined with 2 actors (1 to 2)")
    before = p.until(lambda: len(host.actors()) == 2 and host.actors(), "the actors")
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    # an actor of the host
    p.kill(before["actor-2"])
    p.until(lambda: host.actors().get("actor-2") not in (None, before["actor-2"]), "a new actor")
    assert host.actors()["actor-1"] == before["actor-1"], "the others are left alone"
    # the gateway
    p.kill(p.members(run)["gateway-0"])
    head.hears("gateway-0: killed by SIGKILL; replaced")
    p.until(lambda: head.said().count("joined with 2 actors") == 2, "the host")
    # the learner
    p.kill(p.members(run)["learner-0"])
    head.hears("learner-0: killed by SIGKILL; the fleet goes back to the checkpoint at step ")
    p.until(lambda: head.said().count("joined with 2 actors") == 3, "the host")
    # the host
    host.process.kill()
    host.process.communicate()
    head.hears("left with 2 actors (1 to 2): ")
    p.until(lambda: not p.everyone(host.directory), "its processes to end")
    another = head.join(2)
    p.until(lambda: head.said().count("joined with 2 actors (1 to 2)") == 4, "another host")
    # the head, gently
    head.process.send_signal(signal.SIGINT)
    errors = head.ends(130)
    steps = [record["steps"] for record in read_metrics(run / "metrics.jsonl")]
    assert steps == sorted(steps), errors
    # which finds its host again
    saved = load_checkpoint(run, "latest", ["session"]).steps
    head = Head(run, port, "--steps", str(saved + 1500), resume=True)
    assert "the run is over" in another.ends()
    errors = head.ends()
    assert "joined with 2 actors" in errors


def test_workers_that_step_together_go_back_together(run: Path, port: int) -> None:
    """Who holds a part of a round is gone: the others must not go on with what is left of it."""
    flags = ("--formation", "allreduce", "--actors", "2", "--places", "1", "--steps", "1000000")
    head = Head(run, port, *SYNC, *SLOW_STEPS, *flags)
    host = head.join(1)
    head.hears("joined with 1 actors (1)")
    p.until(lambda: (run / "checkpoints" / "latest").exists(), "a checkpoint")
    p.kill(p.members(run)["gateway-0"])
    head.hears("gateway-0: killed by SIGKILL; the fleet goes back to the checkpoint at step ")
    p.until(lambda: head.said().count("joined with 1 actors") == 2, "the host")
    before = p.steps(run)
    p.until(lambda: p.steps(run) > before, "steps")
    host.process.kill()
    host.process.communicate()
    head.hears("left with 1 actors (1): its connection broke; the fleet goes back to the")
    another = head.join(1)
    p.until(lambda: head.said().count("joined with 1 actors") == 3, "another host")
    before = p.steps(run)
    p.until(lambda: p.steps(run) > before, "steps")
    assert head.said().count("join by") == 1, "the token is printed once"
    another.process.send_signal(signal.SIGINT)
    assert "ending with a checkpoint" not in another.ends(130)
    head.hears("it was ended (SIGINT)")
    head.process.send_signal(signal.SIGINT)
    head.ends(130)
    steps = [record["steps"] for record in read_metrics(run / "metrics.jsonl")]
    assert steps == sorted(steps)


def test_who_is_not_let_in(run: Path, port: int) -> None:
    head = Head(run, port, *REPLAY, "--actors", "1", "--steps", "1000000", "--places", "3")
    wrong = head.join(1, token="another-token-of-the-right-length")
    assert "refuses the token" in wrong.ends(2)
    many = head.join(4)
    assert "4 actors are more than the 3 places" in many.ends(2)
    full = head.join(3)
    head.hears("joined with 3 actors")
    late = head.join(1, "--give-up-after", "1s")
    assert "1 actors, and 0 of 3 places are free" in late.ends(2)
    head.process.send_signal(signal.SIGINT)
    head.ends(130)
    full.process.send_signal(signal.SIGINT)
    full.ends(130)
    assert "refused 1 attempt from 127.0.0.1" in (run / "logs" / "gateway-0.log").read_text()


def test_a_host_with_another_environment_says_so_and_so_does_the_head(
    run: Path, port: int, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("a-token-of-my-own-choice")
    (tmp_path / "token").chmod(0o600)
    head = Head(
        run, port, *REPLAY, "--actors", "1", "--steps", "1000000", "--token-file",
        str(tmp_path / "token"), world="tests.faults.fault_worlds:OfThisHost",
        env={"WORLD_SIZE": "3"},
    )  # fmt: skip
    assert (run / "token").read_text().strip() == "a-token-of-my-own-choice"
    other = head.join(1, env={"WORLD_SIZE": "4"})
    assert "is another one here than at the head" in other.ends(2)
    head.hears("is another one here than at the head")
    without = head.join(1, env={})
    assert "cannot be made here" in without.ends(2)
    head.hears("cannot be made here")
    head.process.send_signal(signal.SIGINT)
    head.ends(130)


def test_a_port_in_use_and_a_head_that_is_not_there(run: Path, port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        words = ["train", WORLD, *REPLAY, "--listen", f"127.0.0.1:{port}", "--run", str(run)]
        done = forked(*words, cwd=p.ROOT, stderr=subprocess.PIPE, text=True)
        _, errors = done.communicate(timeout=p.PATIENCE_SECS)
        assert done.returncode == 2, errors
        assert f"127.0.0.1:{port}: the port is in use" in errors
        assert not run.exists()
    words = ["join", f"127.0.0.1:{port}", "--token", "x" * 20, "--give-up-after", "1s"]
    done = forked(*words, cwd=p.ROOT, stderr=subprocess.PIPE, text=True)
    _, errors = done.communicate(timeout=p.PATIENCE_SECS)
    assert done.returncode == 2, errors
    assert "does not answer" in errors
    assert "given up after" in errors
