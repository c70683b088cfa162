"""Roles that the head leaves to hosts: an evaluator and a recorder that join."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.runs.metrics import read_metrics
from tests.engines.test_hosts import STARTED, Head, Joined
from tests.faults import processes as p

pytestmark = pytest.mark.slow

SMALL = (
    *("--envs", "4", "--stop-at", "none", "--policy.hidden", "[16]", "--log-every", "200"),
    *("--ppo.rollout_steps", "20", "--ppo.num_minibatches", "1", "--ppo.num_epochs", "1"),
    *("--eval-every", "400", "--eval.episodes", "3", "--eval.max_steps", "20"),
)
"""CartPole, whose policies are evaluated over three games."""


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


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run / "metrics.jsonl") if "eval/steps" in record]


def join(head: Head, role: str, *flags: str, **given: Any) -> Joined:
    return head.join(1, "--role", role, *flags, **given)


def test_an_evaluator_joins_dies_and_is_followed(run: Path, port: int) -> None:
    """Under a formation none of whose actors may join."""
    head = Head(
        run, port, *SMALL, "--formation", "hogwild", "--actors", "1",
        "--hosts.leaves", "evaluator", "--steps", "1000000", world="CartPole-v1",
    )  # fmt: skip
    assert "evaluator-0" not in p.members(run), "the head leaves it to others"
    host = join(head, "evaluator")
    head.hears("joined as evaluator")
    p.until(lambda: (run / "metrics.jsonl").exists() and evaluations(run), "an evaluation")
    # its process, which its host replaces
    before = host.actors()["evaluator-0"]
    p.kill(before)
    p.until(lambda: host.actors().get("evaluator-0") not in (None, before), "a new evaluator")
    # the host: its place is free, and what it had been asked is asked again
    host.process.kill()
    host.process.communicate()
    head.hears("left as evaluator: ")
    waiting = len(evaluations(run))
    another = join(head, "evaluator")
    p.until(lambda: len(evaluations(run)) > waiting + 1, "evaluations by another")
    late = join(head, "evaluator", "--give-up-after", "1s")
    assert "1 evaluator, and 0 of 1 places are free" in late.ends(2)
    another.process.send_signal(signal.SIGINT)
    another.ends(130)
    head.hears("it was ended (SIGINT)")
    head.process.send_signal(signal.SIGINT)
    head.ends(130)
    told = evaluations(run)
    assert [record["eval/steps"] for record in told] == sorted({r["eval/steps"] for r in told})
    assert all(record["eval/saved_wall_secs"] <= record["wall_secs"] for record in told)
    assert not list(run.glob(".shared-*")), "the probe goes with the gateway"


def test_a_recorder_films_on_a_host_and_who_cannot_join_is_told(
    run: Path, port: int, tmp_path: Path
) -> None:
    head = Head(
        run, port, *SMALL, "--actors", "1", "--record.episodes", "1", "--record.length_secs", "0.4",
        "--hosts.leaves", "evaluator,recorder", "--hosts.wait_secs", "1", "--steps", "1000000",
        world="CartPole-v1",
    )  # fmt: skip
    head.hears("no host has joined as evaluator for 1 s")
    assert p.steps(run) > 400, "training does not wait"
    other = join(head, "critic")
    assert (
        "'critic' is no role that the head leaves to hosts; it leaves evaluator, recorder (--role)"
        in other.ends(2)
    )
    assert "'actor' is no role that the head leaves" in head.join(1).ends(2)
    elsewhere = join(head, "recorder", "--run", str(tmp_path))
    assert f"and {tmp_path} is another directory here; mount it" in elsewhere.ends(2)
    head.hears("is another directory here")
    host = join(head, "recorder")
    evaluator = join(head, "evaluator")
    p.until(lambda: list((run / "videos").glob("*.mp4")), "a film")
    head.process.send_signal(signal.SIGINT)
    head.ends(130)
    for each in (host, evaluator):
        each.process.send_signal(signal.SIGINT)
        each.ends(130)
    records = read_metrics(run / "metrics.jsonl")
    assert any("record/films" in record for record in records)


def test_the_end_does_not_wait_for_somebody_who_never_comes(run: Path, port: int) -> None:
    head = Head(
        run, port, *SMALL, "--actors", "1", "--hosts.leaves", "evaluator", "--hosts.wait_secs", "1",
        "--steps", "600", world="CartPole-v1",
    )  # fmt: skip
    said = head.ends()
    assert "no host has joined as evaluator for 1 s" in said
    assert "finished: 600 steps reached" in said
    assert evaluations(run) == []
