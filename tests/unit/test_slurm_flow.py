"""What the script of a job does when things happen, with stand-ins for Slurm and Python.

The stand-in for Python is a program that notes how it was called, as head or as host, and plays
what the test asks for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rookery.engines import slurm
from rookery.engines.slurm import Job, Nodes, Part

PYTHON = r"""#!/bin/bash
echo "$*" >> "$NOTES/calls"
case "$3 $4" in
    "slurm --probe") exit "${PROBE:-0}" ;;
    "slurm --check") exit "${CHECK:-0}" ;;
    join*) while [ ! -e "$NOTES/over" ]; do sleep 0.02; done; exit "${HOST:-0}" ;;
esac
save() { mkdir -p "$RUN/checkpoints"; ln -sfn "$1" "$RUN/checkpoints/latest"; }
times=$(grep -c -- '-m rookery train\|-m rookery resume' "$NOTES/calls")
[ -z "$SAVES" ] || save "$times"
trap '[ -z "$SAVES" ] || save "$times-end"; exit 143' TERM
case "$PLAY" in
    finish) touch "$NOTES/over"; exit 0 ;;
    fail) exit 4 ;;
    die) [ "$times" -gt 2 ] && touch "$NOTES/over" && exit 0; kill -KILL $$ ;;
    wait) touch "$NOTES/waits"; while :; do sleep 0.02; done ;;
esac
"""
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
export SLURMD_NODENAME=n2 SLURM_PROCID=0
exec "$@"
"""
SQUEUE = """#!/bin/bash
case "$*" in
    *%N) echo "${NODES_LEFT:-n1,n2}" ;;
    *) echo "${STATE:-RUNNING}" ;;
esac
"""
SCONTROL = """#!/bin/bash
case "$1" in
    show) echo "${3//,/$'\\n'}" ;;
    requeue) echo "$*" >> "$NOTES/requeued" ;;
esac
"""


class Played:
    """A job whose script runs here."""

    def __init__(self, tmp_path: Path, **environment: str) -> None:
        self.notes, self.run = tmp_path / "notes", tmp_path / "a run"
        self.notes.mkdir()
        (self.run / "logs").mkdir(parents=True)
        programs = {"python": PYTHON, "srun": SRUN, "squeue": SQUEUE, "scontrol": SCONTROL}
        for name, text in programs.items():
            (self.notes / name).write_text(text)
            (self.notes / name).chmod(0o755)
        job = Job(
            run=self.run,
            name="x",
            command="rookery slurm x",
            nodes=Nodes(nodes=2, python=str(self.notes / "python")),
            parts=[Part("host", 1, ("--actors", "1"), needed="HOST" in environment)],
        )
        (self.run / "slurm.sh").write_text(job.script())
        own = {"NOTES": str(self.notes), "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"} | environment
        self.process = subprocess.Popen(
            ["bash", str(self.run / "slurm.sh")],
            env=os.environ | own | {"PATH": f"{self.notes}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def waits(self) -> None:
        deadline = time.monotonic() + 10
        while not (self.notes / "waits").exists():
            assert time.monotonic() < deadline, "the head did not begin"
            time.sleep(0.02)

    def ends(self) -> tuple[int, str]:
        """Exit code, and what was said; nothing of it lives on."""
        (self.notes / "over").touch()
        said, _ = self.process.communicate(timeout=20)
        return self.process.returncode, said

    def heads(self) -> list[str]:
        """The commands that were a head's, by their first word."""
        words = [line.split() for line in (self.notes / "calls").read_text().splitlines()]
        return [line[2] for line in words if line[2] in ("train", "resume")]

    def requeued(self) -> bool:
        return (self.notes / "requeued").exists()


def test_a_run_that_finishes_ends_the_job(tmp_path: Path) -> None:
    played = Played(tmp_path, PLAY="finish", SAVES="yes")
    played.process.wait(20)
    code, said = played.ends()
    assert code == 0, said
    assert played.heads() == ["train"]
    calls = (played.notes / "calls").read_text()
    assert f"-m rookery join --run {played.run} --logs {played.run}/hosts/n2 --actors 1" in calls
    assert "--listen 0.0.0.0:20007 --token-file" in calls
    assert not played.requeued()


@pytest.mark.parametrize("signal_sent", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_ends_the_run_and_requeues(tmp_path: Path, signal_sent: signal.Signals) -> None:
    played = Played(tmp_path, PLAY="wait", SAVES="yes")
    played.waits()
    played.process.send_signal(signal_sent)
    code, said = played.ends()
    assert code == 143, said
    assert "requeued, to go on from 1-end" in said
    assert (played.notes / "requeued").read_text() == "requeue 7\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"SAVES": "yes", "STATE": "COMPLETING"}, "Slurm ends the job (COMPLETING)"),
        ({}, "not requeued: nothing was saved"),
    ],
)
def test_what_is_not_requeued(tmp_path: Path, given: dict[str, str], said: str) -> None:
    played = Played(tmp_path, PLAY="wait", **given)
    played.waits()
    played.process.send_signal(signal.SIGUSR1)
    code, heard = played.ends()
    assert code == 143
    assert said in heard
    assert not played.requeued()


def test_a_killed_head_is_resumed_in_the_same_job(tmp_path: Path) -> None:
    played = Played(tmp_path, PLAY="die", SAVES="yes")
    played.process.wait(20)
    code, said = played.ends()
    assert code == 0, said
    assert said.count("the head was killed (exit code 137) and begins anew") == 2
    assert played.heads() == ["train", "resume", "resume"]


def test_a_head_that_fails_ends_the_job(tmp_path: Path) -> None:
    played = Played(tmp_path, PLAY="fail")
    code, said = played.ends()
    assert code == 4, said
    assert played.heads() == ["train"]
    assert not played.requeued()


@pytest.mark.parametrize("nodes", ["n2", "n1,n2"])
def test_hosts_requeue_a_job_whose_heads_node_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    monkeypatch.setattr(slurm, "WATCH_SECS", 0.1)
    played = Played(tmp_path, PLAY="wait", NODES_LEFT=nodes)
    played.waits()
    time.sleep(0.5)
    found = played.requeued()
    played.process.send_signal(signal.SIGUSR1)
    _, said = played.ends()
    assert found == (nodes == "n2"), said
    assert ("the head's node n1 has failed: requeued" in said) == found


@pytest.mark.parametrize(("host", "code"), [("143", 143), ("3", 3)])
def test_a_host_that_is_needed_and_ends_requeues_unless_it_has_failed(
    tmp_path: Path, host: str, code: int
) -> None:
    played = Played(tmp_path, PLAY="wait", SAVES="yes", HOST=host)
    played.waits()
    (played.notes / "over").touch()  # the host ends
    found, said = played.ends()
    assert found == code, said
    assert "a host has ended; see its log" in said
    assert played.requeued() == (host == "143")
    assert ("not requeued: a host has failed with exit code 3" in said) == (host == "3")


@pytest.mark.parametrize(("which", "code"), [("PROBE", 3), ("CHECK", 2)])
def test_a_node_that_is_unlike_the_others_ends_the_job_before_it_begins(
    tmp_path: Path, which: str, code: int
) -> None:
    played = Played(tmp_path, PLAY="finish", **{which: str(code)})
    assert played.ends()[0] == code
    assert played.heads() == []
