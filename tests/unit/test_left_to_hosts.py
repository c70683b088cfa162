"""Roles that the head leaves to hosts: the settings, the program, and what is refused."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rookery.cli.main import main
from rookery.core.errors import UserError
from rookery.core.hosts import Probe
from rookery.core.ports import End
from rookery.engines.absence import Absence
from rookery.engines.carries import carries
from rookery.engines.host import Way
from rookery.engines.joined import served_edges, used_edges
from rookery.programs.graph import Program
from rookery.programs.plan import Plan
from rookery.programs.validate import validate
from rookery.recipes.settings import settings_from_flags
from rookery.roles.evaluator import answer_spec, read_answer
from rookery.roles.recorder import film_spec, read_film
from rookery.runs.shared_probe import probe_in, seen_here
from rookery.transport.calls import CallPort
from tests.wired import ends

HERE = "127.0.0.1:5500"


def program_of(what: str = "cartpole", **flags: str) -> Program:
    settings = {"listen": HERE, "hosts.leaves": "evaluator,recorder", "record.episodes": "1"}
    return Plan.of(settings_from_flags(what, settings | flags)).program()


def left(program: Program) -> dict[str, int]:
    return {node.name: node.left_to_hosts for node in program.open_to_hosts}


def test_who_is_left_to_hosts() -> None:
    assert left(program_of()) == {"evaluator": 1, "recorder": 1}
    assert left(program_of(**{"hosts.leaves": "recorder"})) == {"recorder": 1}
    with_places = program_of(actors="4", places="3")
    assert left(with_places) == {"actor": 3, "evaluator": 1, "recorder": 1}
    assert list(with_places.acting.places) == [1, 2, 3]
    assert left(program_of("dqn-cartpole")) == {"actor": 32, "evaluator": 1, "recorder": 1}
    hogwild = program_of(formation="hogwild")
    assert left(hogwild) == {"evaluator": 1, "recorder": 1}, "whose workers stay at home"
    gateway = next(node for node in hogwild.nodes if node.stands_for_hosts)
    assert gateway.on_death == "replace"
    assert left(program_of(listen="null", **{"hosts.leaves": "[]"})) == {}


def test_what_travels_for_them() -> None:
    program = program_of()
    for name, port in (("evaluator", "evaluation"), ("recorder", "recording")):
        node = program.node(name)
        assert [edge.port.name for _, edge in served_edges(program, node)] == [port]
        assert [edge.port.name for _, edge, _ in used_edges(program, node)] == ["vitals"]
    acting = program.acting
    assert not list(served_edges(program, acting))
    numbers = [each[0] for each in (*served_edges(program, node), *used_edges(program, node))]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"hosts.leaves": "learner"}, "hosts cannot run 'learner'; those they can: evaluator, rec"),
        ({"eval.episodes": "0", "record.episodes": "0"}, "none, as there is neither evaluation"),
        ({"listen": "null"}, "hosts.leaves: is for runs that others join; add --listen"),
        ({"hosts.wait_secs": "-1"}, "hosts.wait_secs: must not be negative"),
        ({"formation": "hogwild", "places": "2"}, "shares memory and stays on one machine"),
        ({"actors": "0"}, "must be at least 1, got 0"),
        ({"engine": "inline"}, "hosts join engine local, not inline"),
    ],
)
def test_what_cannot_be_is_one_line(flags: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as error:
        program_of(**flags)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_only_one_replica_that_answers_calls_may_join() -> None:
    program = program_of()
    validate(program, "local", carries("local"))
    learner = program.node("learner")
    wrong = tuple(replace(n, may_join=True) if n is learner else n for n in program.nodes)
    with pytest.raises(UserError, match=r"learner may not be left to hosts.*set may_join to False"):
        validate(replace(program, nodes=wrong), "local", carries("local"))


def test_the_plan_says_who_joins(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--listen", HERE, "--hosts.leaves", "evaluator"]
    assert main(["plan", "cartpole", *flags]) == 0
    out = capsys.readouterr().out
    assert "1 host and those that join, which run evaluator (link grpc)" in out
    assert f"evaluator at {HERE}" in out
    assert main(["plan", "dqn-cartpole", *flags, "--places", "2", "--actors", "1"]) == 0
    assert "whose actors have places 1 to 2, which run evaluator" in capsys.readouterr().out


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "rookery.carriers.grpc", raising=False)
    with pytest.raises(UserError, match=r'pip install "rookery\[grpc\]" brings it'):
        Way(HERE, "x" * 20).dial()


def test_joining_for_a_role_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["join", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--role" in out
    assert "--run" in out


# ---- the shared directory ------------------------------------------------------------------------


def test_a_host_knows_the_directory_of_the_head(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    (run / ".shared-of-one-killed").touch()
    with probe_in(run) as probe:
        assert [path.name for path in run.glob(".shared-*")] == [probe.name]
        assert seen_here(probe, None) == run
        (tmp_path / "mounted").symlink_to(run)
        assert seen_here(probe, tmp_path / "mounted") == tmp_path / "mounted"
        with pytest.raises(
            UserError, match=rf"{other} is another directory here; mount it, or say"
        ):
            seen_here(probe, other)
        with pytest.raises(UserError, match="is not here"):
            seen_here(probe, tmp_path / "nowhere")
        (other / probe.name).write_text("what an earlier head wrote")
        with pytest.raises(UserError, match="is another directory"):
            seen_here(probe, other)
        (other / "secret").write_text(probe.content)
        with pytest.raises(UserError):  # a head cannot have other files read
            seen_here(Probe(str(other), "../other/secret/..", probe.content), None)
    assert not list(run.glob(".shared-*"))


# ---- nobody is there -----------------------------------------------------------------------------


class Vitals:
    """Of somebody who is there, or not."""

    def __init__(self) -> None:
        self.there = False

    def alive(self) -> dict[int, Any]:
        return {0: np.zeros(8)} if self.there else {}


def test_nobody_having_joined_is_said_once_and_only_if_somebody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("rookery.core.patience.time", clock)
    vitals, said = Vitals(), []
    node = replace(program_of().node("evaluator"))
    absence = Absence(node, vitals, 10.0, said.append)  # type: ignore[arg-type]

    def after(secs: float, *, asked: bool = True) -> bool:
        clock.now += secs
        return absence.too_long(asked=asked)

    assert not any(after(4.0, asked=False) for _ in range(10))
    assert [after(4.0) for _ in range(4)] == [False, False, True, True]
    assert len(said) == 1
    assert "no host has joined as evaluator for 10 s" in said[0]
    assert "--role evaluator" in said[0]
    vitals.there = True
    assert not after(4.0)
    vitals.there = False
    assert [after(4.0) for _ in range(3)] == [False, False, True]
    assert len(said) == 1
    at_home = Absence(replace(node, left_to_hosts=0), Vitals(), 0.0, said.append)  # type: ignore[arg-type]
    assert not at_home.too_long(asked=True)


def test_what_a_host_left_open_is_skipped_and_none_that_is_asked_meanwhile_is_lost() -> None:
    port = CallPort("evaluation", "", {})
    (client,), _ = ends(port)
    client.ask(1)
    client.ask(2)
    relay = port.client_relay(client.end.arrays)
    assert [client.hear(), client.hear(), client.hear()] == [(1, None), (2, None), None]
    client.ask(1)
    frame = relay.next()
    assert frame is not None
    assert frame["steps"][0] == 1
    there = port.server_relay(End({name: a.copy() for name, a in client.end.arrays.items()}))
    assert set(frame) == set(there.receives)


def test_answers_that_nobody_asked_for_end_the_exchange() -> None:
    port = CallPort("evaluation", "", {})
    (client,), _ = ends(port)
    relay = port.client_relay(client.end.arrays)
    answered = {"answered": np.array([1])}
    client.ask(1)
    with pytest.raises(RuntimeError, match="an answer, and nothing is asked"):
        relay.accept(answered)  # the question has not left yet
    assert relay.next() is not None
    relay.accept(answered)
    assert client.answers() == [(1, {})]
    with pytest.raises(RuntimeError, match="an answer, and nothing is asked"):
        relay.accept(answered)


@pytest.mark.parametrize("count", [0, -1, 3])
def test_an_answer_without_scores_is_none(count: int) -> None:
    scores = {name: np.zeros(spec.shape, spec.dtype) for name, spec in answer_spec(2).items()}
    film = {name: np.zeros(spec.shape, spec.dtype) for name, spec in film_spec(2).items()}
    assert read_answer(scores | {"count": np.array([2, 0])}) is not None
    assert read_answer(scores | {"count": np.array([count, 0])}) is None
    assert read_film(film | {"count": np.array([count])}) is None
