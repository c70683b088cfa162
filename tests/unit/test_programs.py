"""Programs: what is refused before anything starts, how they are drawn, and the sync program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from rookery.core.errors import UserError
from rookery.core.ports import Kind
from rookery.core.spec import ArraySpec
from rookery.engines.carries import carries
from rookery.envs.make import EnvConfig
from rookery.formations.allreduce import AllreduceConfig
from rookery.formations.hogwild import HogwildConfig
from rookery.formations.paramserver import ParamserverConfig
from rookery.formations.settings import FormationConfig, formation_config_class
from rookery.formations.sync import SyncConfig
from rookery.programs.graph import Edge, Link, Node, Program
from rookery.programs.place import Ports
from rookery.programs.plan import Plan
from rookery.programs.render import link_of, to_mermaid, to_text
from rookery.programs.validate import validate
from rookery.roles.evaluator import EvalConfig
from rookery.runs.config import RunConfig
from rookery.transport.blocks import BlockPort
from rookery.transport.group_port import GroupPort
from rookery.transport.vitals import VitalsPort
from rookery.transport.weights import WeightsPort

CARRIES: Mapping[Kind, Link] = {"stream": "call", "cell": "call"}


def rollout(num_envs: int) -> dict[str, ArraySpec]:
    return {"reward": ArraySpec((5, num_envs), np.dtype(np.float32))}


def nobody(place: Any) -> Any:
    raise AssertionError("a program starts nothing")


ACTOR = Node(name="actor", build=nobody, replicas=2, has_envs=True, about="acts")
LEARNER = Node(name="learner", build=nobody, num_threads=2, keeps_session=True, about="learns")
WEIGHTS = WeightsPort({"params": ArraySpec((1000,), np.dtype(np.float32))})
EXPERIENCE = Edge("actor", BlockPort(rollout, num_actors=2, num_envs=4), "learner")
PARAMS = Edge("actor", WEIGHTS, "learner")
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
        (with_nodes(ACTOR, ACTOR, LEARNER), "two nodes are called actor", "rename one"),
        (
            with_nodes(replace(ACTOR, replicas=0), LEARNER),
            "actor has no replicas",
            "give it one",
        ),
        (
            with_edges(EXPERIENCE, PARAMS, Edge("critic", WEIGHTS, "learner")),
            "no node is called critic",
            "add it",
        ),
        (
            with_edges(EXPERIENCE, PARAMS, Edge("actor", WEIGHTS, "store")),
            "no node is called store",
            "add it",
        ),
        (
            with_edges(EXPERIENCE, PARAMS, PARAMS),
            "edge actor.params.learner is there twice",
            "remove one",
        ),
        (
            with_nodes(replace(ACTOR, keeps_session=True), LEARNER),
            "2 nodes keep the session",
            "exactly one must",
        ),
        (
            with_nodes(ACTOR, replace(LEARNER, keeps_session=False)),
            "0 nodes keep the session",
            "exactly one must",
        ),
        (
            with_nodes(replace(ACTOR, has_envs=False), LEARNER),
            "no node has environments",
            "one must",
        ),
        (
            replace(
                with_nodes(replace(ACTOR, replicas=3), replace(LEARNER, replicas=2)),
                edges=(replace(PARAMS, split=True),),
            ),
            "3 cannot be divided among 2",
            "have a multiple of 2",
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


def test_a_role_without_an_end_that_it_needs_is_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match="no edge for port params; join this role to one that ser"):
        Ports().use("params")
    with pytest.raises(UserError, match="port params has 0 edges to this role; one is needed"):
        Ports().serve("params")
    two = Ports(serves={"params": {"actor": 1, "worker": 2}})
    with pytest.raises(UserError, match="port params has 2 edges to this role; one is needed"):
        two.serve("params")


def test_what_an_engine_cannot_carry_is_refused() -> None:
    with pytest.raises(UserError, match=r"engine inline cannot carry .*; choose another --engine"):
        validate(GOOD, "inline", {"stream": "call"})


def test_what_all_write_to_stays_on_one_machine() -> None:
    program = Plan.of(config(formation=HogwildConfig(num_actors=3))).program()
    validate(program, "local", carries("local"))
    with pytest.raises(UserError, match=r"engine mpi cannot carry .*; choose another --engine"):
        validate(program, "mpi", carries("mpi"))


def test_what_servers_keep_goes_over_every_link() -> None:
    formation = ParamserverConfig(num_actors=3, num_servers=2)
    program = Plan.of(config(formation=formation)).program()
    for engine in ("inline", "local", "mpi"):
        validate(program, engine, carries(engine))
    assert [(node.name, node.replicas) for node in program.nodes[:3]] == [
        ("worker", 3),
        ("server", 2),
        ("session", 1),
    ]
    assert program.owner.name == "session"
    assert {edge.port.name for edge in program.edges if edge.each} == {"shard", "part"}


def test_one_thread_carries_no_group_of_several() -> None:
    group = Edge("actor", GroupPort("actor", 2, 64), "actor")
    program = with_edges(EXPERIENCE, PARAMS, group)
    validate(program, "local", carries("local"))
    with pytest.raises(UserError, match=r"one thread and carries one actor, not 2: --engine local"):
        validate(program, "inline", carries("inline"), concurrent=False)
    validate(program, "inline", carries("inline"), concurrent=True)  # as threads


def test_an_edge_is_a_call_where_both_ends_take_turns() -> None:
    program = Plan.of(config()).program()

    def links(engine: str) -> dict[str, Link]:
        edges = {edge.key: edge for edge in program.edges}
        return {key: link_of(program, edge, carries(engine)) for key, edge in edges.items()}

    assert set(links("inline").values()) == {"call"}
    assert set(links("local").values()) == {"shared_memory"}
    mpi = links("mpi")
    assert mpi["actor.experience.learner"] == mpi["actor.params.learner"] == "message"
    assert mpi["learner.evaluation.evaluator"] == "call", "the evaluator sleeps most of the time"


def test_a_program_as_text() -> None:
    plan = Plan.of(config(formation=SyncConfig(num_actors=2), num_envs=8))
    vitals = Edge("actor", VitalsPort(2), "learner")
    assert to_text(with_edges(EXPERIENCE, PARAMS, vitals), plan, CARRIES) == (
        "program toy on engine inline, 1 host\n"
        "\n"
        "roles\n"
        "  actor x2     1 thread   4 of 8 environments, acts\n"
        "  learner x1   2 threads  learns\n"
        "\n"
        "edges\n"
        "  actor -> learner       experience   call                80 B / rollout     "
        "rollouts, one round of all at a time\n"
        "  actor -> learner       params       call                4 kB / update      "
        "weights with a version, published and got\n"
        "  actor -> learner       vitals       call                64 B / second      "
        "heartbeat, where the time goes, and numbers for the metrics\n"
    )


def test_a_program_as_mermaid() -> None:
    """Without heartbeats: all have one."""
    plan = Plan.of(config(formation=SyncConfig(num_actors=2), num_envs=8))
    vitals = Edge("actor", VitalsPort(2), "learner")
    assert to_mermaid(with_edges(EXPERIENCE, PARAMS, vitals), plan, CARRIES) == (
        "flowchart LR\n"
        '  actor["actor x2<br/>4 of 8 environments, acts"]\n'
        '  learner["learner<br/>learns"]\n'
        '  actor -- "experience (call)" --> learner\n'
        '  actor -- "params (call)" --> learner\n'
    )


FORMATIONS = {
    SyncConfig: "sync",
    HogwildConfig: "hogwild",
    AllreduceConfig: "allreduce",
    ParamserverConfig: "paramserver",
}


def config(
    episodes: int = 20, formation: FormationConfig | None = None, num_envs: int = 12
) -> RunConfig:
    formation = formation or SyncConfig(num_actors=3, learner_threads=2)
    return RunConfig(
        env=EnvConfig(id="CartPole-v1", num_envs=num_envs),
        formation=FORMATIONS[type(formation)],
        formation_config=formation,
        eval=EvalConfig(episodes=episodes),
    )


def test_the_sync_program() -> None:
    plan = Plan.of(config())
    program = plan.program()
    assert [(node.name, node.replicas) for node in program.nodes] == [
        ("actor", 3),
        ("learner", 1),
        ("evaluator", 1),
    ]
    assert program.node("learner").num_threads == 2
    assert program.node("actor").num_threads == 1
    assert {(edge.source, edge.port.name, edge.target) for edge in program.edges} == {
        ("actor", "experience", "learner"),
        ("actor", "params", "learner"),
        ("learner", "evaluation", "evaluator"),
        ("actor", "vitals", "learner"),
        ("learner", "vitals", "learner"),
        ("evaluator", "vitals", "learner"),
    }
    assert "4 of 12 environments" in to_text(program, plan, carries("inline"))


def test_without_evaluation_there_is_no_evaluator() -> None:
    program = Plan.of(config(episodes=0)).program()
    assert [node.name for node in program.nodes] == ["actor", "learner"]
    assert "evaluation" not in {edge.port.name for edge in program.edges}


@pytest.mark.parametrize("engine", ["inline", "local", "mpi"])
def test_every_engine_carries_the_sync_program(engine: str) -> None:
    program = Plan.of(config()).program()
    validate(program, engine, carries(engine))
    assert all(link_of(program, edge, carries(engine)) for edge in program.edges)
    assert set(carries(engine)) <= set(get_args(Kind))


def test_an_unknown_formation_is_refused_with_the_nearest_name() -> None:
    assert formation_config_class("sync") is SyncConfig
    with pytest.raises(UserError, match="unknown 'synk'; did you mean 'sync'"):
        formation_config_class("synk")


@pytest.mark.parametrize(("field", "value"), [("num_actors", -1), ("learner_threads", 0)])
def test_a_formation_without_actors_or_threads_is_refused(field: str, value: int) -> None:
    with pytest.raises(UserError, match=field):
        SyncConfig(**{field: value})
