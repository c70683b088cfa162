"""Programs: what is refused before anything starts, how they are drawn, and the sync program."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rookery.core.errors import UserError
from rookery.engines.carries import carries
from rookery.envs.make import EnvConfig
from rookery.formations.settings import FormationConfig, formation_config_class
from rookery.formations.sync import SyncConfig
from rookery.programs.formations import build_program
from rookery.programs.graph import PORTS, Edge, Link, Node, Program
from rookery.programs.render import to_mermaid, to_text
from rookery.programs.validate import validate
from rookery.roles.evaluator import EvalConfig
from rookery.runs.config import RunConfig

CARRIES: dict[str, Link] = {"experience": "call", "params": "call"}

ACTOR = Node(name="actor", replicas=2, needs=frozenset({"experience", "params"}), about="acts")
LEARNER = Node(
    name="learner", serves=frozenset({"experience", "params"}), num_threads=2, about="learns"
)
EXPERIENCE = Edge("actor", "experience", "learner")
PARAMS = Edge("actor", "params", "learner")
GOOD = Program("toy", (ACTOR, LEARNER), (EXPERIENCE, PARAMS))


def test_a_wired_program_is_accepted() -> None:
    validate(GOOD, "inline", CARRIES)


def with_edges(*edges: Edge) -> Program:
    return replace(GOOD, edges=edges)


def with_nodes(*nodes: Node) -> Program:
    return replace(GOOD, nodes=nodes)


@pytest.mark.parametrize(
    ("program", "wrong", "remedy"),
    [
        (with_nodes(ACTOR, ACTOR, LEARNER), "two nodes have the same name", "rename one"),
        (
            with_nodes(replace(ACTOR, replicas=0), LEARNER),
            "actor has no replicas",
            "give it one",
        ),
        (
            with_edges(EXPERIENCE, PARAMS, Edge("critic", "params", "learner")),
            "no node is called critic",
            "add it",
        ),
        (
            with_edges(EXPERIENCE, PARAMS, Edge("actor", "params", "store")),
            "no node is called store",
            "add it",
        ),
        (
            with_edges(EXPERIENCE, PARAMS, Edge("actor", "gossip", "learner")),
            "no such port",
            "one of evaluation, experience, gradients, params",
        ),
        (
            with_edges(EXPERIENCE, Edge("learner", "params", "actor")),
            "actor does not serve params",
            "join it to a node that does",
        ),
        (
            with_edges(EXPERIENCE),
            "actor needs one edge for params and has 0",
            "join it to one node that serves params",
        ),
        (
            with_edges(EXPERIENCE, PARAMS, PARAMS),
            "actor needs one edge for params and has 2",
            "join it to one node that serves params",
        ),
        (
            with_edges(EXPERIENCE, replace(PARAMS, link="shared_memory")),
            "engine inline carries params by call, not by shared_memory",
            "choose another --engine",
        ),
    ],
)
def test_a_wrong_program_is_refused_with_its_remedy(
    program: Program, wrong: str, remedy: str
) -> None:
    with pytest.raises(UserError) as caught:
        validate(program, "inline", CARRIES)
    said = str(caught.value)
    assert said.startswith("program toy: ")
    assert wrong in said
    assert said.index(wrong) < said.index(remedy)


def test_what_an_engine_cannot_carry_is_refused() -> None:
    with pytest.raises(UserError, match=r"engine inline cannot carry .*; choose another --engine"):
        validate(GOOD, "inline", {"experience": "call"})


def test_links_are_filled_in_unless_they_are_given() -> None:
    given = with_edges(replace(EXPERIENCE, link="shared_memory"), PARAMS)
    linked = given.with_links(CARRIES)
    assert [edge.link for edge in linked.edges] == ["shared_memory", "call"]
    assert [edge.link for edge in given.edges] == ["shared_memory", None]


def test_a_program_as_text() -> None:
    assert to_text(GOOD.with_links(CARRIES), "inline") == (
        "program toy on engine inline\n"
        "\n"
        "roles\n"
        "  actor x2     1 thread   acts\n"
        "  learner x1   2 threads  learns\n"
        "\n"
        "edges\n"
        "  actor -> learner         experience   call           rollouts, put and sampled\n"
        "  actor -> learner         params       call           "
        "weights with a version, published and got\n"
    )


def test_a_link_that_is_not_chosen_yet_is_a_question_mark() -> None:
    assert " ? " in to_text(GOOD, "inline")


def test_a_program_as_mermaid() -> None:
    assert to_mermaid(GOOD.with_links({"params": "call"})) == (
        "flowchart LR\n"
        '  actor["actor x2<br/>acts"]\n'
        '  learner["learner<br/>learns"]\n'
        '  actor -- "experience" --> learner\n'
        '  actor -- "params (call)" --> learner\n'
    )


def config(episodes: int = 20, formation: FormationConfig | None = None) -> RunConfig:
    return RunConfig(
        env=EnvConfig(id="CartPole-v1", num_envs=12),
        formation_config=formation or SyncConfig(num_actors=3, learner_threads=2),
        eval=EvalConfig(episodes=episodes),
    )


def test_the_sync_program() -> None:
    program = build_program(config())
    assert [(node.name, node.replicas) for node in program.nodes] == [
        ("actor", 3),
        ("learner", 1),
        ("evaluator", 1),
    ]
    assert program.node("learner").num_threads == 2
    assert program.node("actor").num_threads == 1
    assert {(edge.source, edge.port, edge.target) for edge in program.edges} == {
        ("actor", "experience", "learner"),
        ("actor", "params", "learner"),
        ("learner", "evaluation", "evaluator"),
    }
    assert "4 environments" in program.node("actor").about


def test_without_evaluation_there_is_no_evaluator() -> None:
    program = build_program(config(episodes=0))
    assert [node.name for node in program.nodes] == ["actor", "learner"]
    assert "evaluation" not in {edge.port for edge in program.edges}


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_every_engine_carries_the_sync_program(engine: str) -> None:
    program = build_program(config())
    validate(program, engine, carries(engine))
    linked = program.with_links(carries(engine))
    assert all(edge.link for edge in linked.edges)
    validate(linked, engine, carries(engine))
    assert set(carries(engine)) <= set(PORTS)


def test_an_unknown_formation_is_refused_with_the_nearest_name() -> None:
    assert formation_config_class("sync") is SyncConfig
    with pytest.raises(UserError, match="unknown 'synk'; did you mean 'sync'"):
        formation_config_class("synk")


@pytest.mark.parametrize("field", ["num_actors", "learner_threads"])
def test_a_formation_without_actors_or_threads_is_refused(field: str) -> None:
    with pytest.raises(UserError, match=field):
        SyncConfig(**{field: 0})
