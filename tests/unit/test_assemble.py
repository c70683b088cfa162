"""From a program and memory to ends: every array once, and each end where it belongs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rookery.carriers.heap import allocate
from rookery.core.spec import Arrays, ArraySpec
from rookery.engines.assemble import Wired, layouts, prefix_of
from rookery.programs.graph import Edge, Node, Program
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_python
from rookery.transport.actor_states import ActorStatesPort
from rookery.transport.eventfd import EventFd
from rookery.transport.group_port import GroupPort
from rookery.transport.shared_group import SharedGroup
from rookery.transport.vitals import VitalsPort
from rookery.transport.weights import WeightsPort
from tests.wired import Crew, in_turn

FORMATIONS: dict[str, dict[str, Any]] = {
    "sync": {"actors": 2},
    "async": {"algo": "impala", "formation": "async", "actors": 2},
    "hogwild": {"formation": "hogwild", "engine": "local", "workers": 2},
    "allreduce": {"formation": "allreduce", "engine": "local", "workers": 2},
    "paramserver": {
        "formation": "paramserver",
        "engine": "local",
        "workers": 2,
        "paramserver": {"num_servers": 3},
    },
    "replay": {"algo": "dqn", "actors": 2, "engine": "local", "learners": 2},
}


def program_of(name: str) -> Program:
    given = {"envs": 4, **FORMATIONS[name]}
    return Plan.of(settings_from_python("CartPole-v1", given)).program()


@pytest.mark.parametrize("name", FORMATIONS)
def test_every_array_of_every_edge_is_there_once(name: str) -> None:
    program = program_of(name)
    specs = layouts(program)
    wanted = sum(len(edge.port.layout()) * program.num_parts(edge) for edge in program.edges)
    assert len(specs) == wanted
    for edge in program.edges:
        for array, spec in edge.port.layout().items():
            for part in range(program.num_parts(edge)):
                assert specs[f"{prefix_of(edge, part)}{array}"] == spec
    keys = Counter(edge.key for edge in program.edges)
    assert set(keys.values()) == {1}


def test_some_edges_can_be_laid_out_alone() -> None:
    program = program_of("sync")
    (edge,) = [edge for edge in program.edges if edge.port.name == "params"]
    assert set(layouts(program, [edge])) == {
        f"{prefix_of(edge)}{name}" for name in edge.port.layout()
    }


@pytest.mark.parametrize("name", FORMATIONS)
def test_every_replica_has_an_end_of_each_of_its_edges(name: str) -> None:
    program = program_of(name)
    wired = Wired(program, allocate(layouts(program)), in_turn(program))
    for node in program.nodes:
        for replica in range(node.replicas):
            ports = wired.ports_of(node.name, replica)
            uses = {edge.port.name for edge in program.edges if edge.source == node.name}
            serves = {
                (edge.port.name, edge.source)
                for edge in program.edges
                if edge.target == node.name and not edge.among_peers
            }
            assert set(ports.uses) == uses
            found = {(port, source) for port, ends in ports.serves.items() for source in ends}
            assert found == serves


def test_the_ends_of_an_edge_share_its_memory_and_no_other() -> None:
    config = settings_from_python("CartPole-v1", {"actors": 2, "envs": 4, "eval": {"episodes": 0}})
    crew = Crew(config)
    actors = [crew.wired.ports_of("actor", replica) for replica in range(2)]
    learner = crew.wired.ports_of("learner", 0)
    cell = learner.serve("params")
    for actor in actors:
        for name, value in actor.use("params").values.items():
            assert value.data_ptr() == cell.values[name].data_ptr()
    batch = learner.serve("experience").sample()
    columns = [actor.use("experience").reserve().reward for actor in actors]
    assert all(np.shares_memory(column, batch.reward) for column in columns)
    assert not np.shares_memory(*columns)
    arrays = list(crew.wired.arrays.values())
    for number, array in enumerate(arrays):
        assert not any(np.shares_memory(array, other) for other in arrays[number + 1 :])


# --- programs made by hand -----------------------------------------------------------------------


def nobody(place: Any) -> Any:
    raise AssertionError("nothing is built here")


NUMBERS = {"value": ArraySpec((), np.dtype(np.int64))}
ACTOR = Node(name="actor", build=nobody, replicas=4, has_envs=True)
SHARD = Node(name="shard", build=nobody, replicas=2, keeps_session=True)
SPLIT = Edge("actor", ActorStatesPort(NUMBERS, num_actors=2), "shard", split=True)
WHOLE = Edge("actor", ActorStatesPort(NUMBERS, num_actors=4), "shard")
EACH = Edge("actor", ActorStatesPort(NUMBERS, num_actors=4), "shard", each=True)


def wired(edge: Edge, arrays: Arrays | None = None, **given: Any) -> Wired:
    program = Program("toy", (ACTOR, SHARD), (edge,))
    memory = allocate(layouts(program)) if arrays is None else arrays
    return Wired(program, memory, given.pop("wakeups", in_turn(program)), **given)


def saved(value: int) -> Arrays:
    return {"value": np.array(value)}


def read(wiring: Wired, shard: int, client: int) -> int | None:
    states = wiring.ports_of("shard", shard).serve("actor_state")
    found = states.read(client)
    return None if found is None else int(found["value"])


def test_replicas_that_serve_together_see_all_clients() -> None:
    wiring = wired(WHOLE)
    for actor in range(4):
        wiring.ports_of("actor", actor).use("actor_state").save(saved(10 + actor))
    for shard in range(2):
        assert [read(wiring, shard, client) for client in range(4)] == [10, 11, 12, 13]


def test_each_server_of_a_split_edge_has_its_own_clients_and_memory() -> None:
    wiring = wired(SPLIT)
    assert len(wiring.arrays) == 2 * len(SPLIT.port.layout())
    for actor in range(4):
        wiring.ports_of("actor", actor).use("actor_state").save(saved(10 + actor))
    assert [read(wiring, 0, client) for client in range(2)] == [10, 11]
    assert [read(wiring, 1, client) for client in range(2)] == [12, 13]
    program = wiring.program
    assert [program.clients_of(SPLIT, part) for part in range(2)] == [[0, 1], [2, 3]]
    assert [program.parts_of(SPLIT, client) for client in range(4)] == [[0], [0], [1], [1]]


def test_each_server_has_memory_of_its_own_for_all_clients() -> None:
    wiring = wired(EACH)
    assert len(wiring.arrays) == 2 * len(EACH.port.layout())
    for actor in range(4):
        ends = wiring.ports_of("actor", actor).use("actor_state")
        assert len(ends) == 2
        for shard, end in enumerate(ends):
            end.save(saved(100 * shard + actor))
    for shard in range(2):
        assert [read(wiring, shard, client) for client in range(4)] == [
            100 * shard + client for client in range(4)
        ]
    program = wiring.program
    assert [program.clients_of(EACH, part) for part in range(2)] == [[0, 1, 2, 3]] * 2
    assert [program.parts_of(EACH, client) for client in range(4)] == [[0, 1]] * 4


def test_of_the_ends_of_all_servers_some_may_be_elsewhere() -> None:
    far = object()
    wiring = wired(EACH, elsewhere={(EACH.key, 1, 1): far})
    here, there = wiring.ports_of("actor", 1).use("actor_state")
    assert there is far
    assert here is not far
    assert far not in wiring.ports_of("actor", 0).use("actor_state")


@pytest.mark.parametrize("edge", [SPLIT, WHOLE], ids=["split", "whole"])
def test_ends_wake_those_at_the_other_end_of_their_part(edge: Edge) -> None:
    program = Program("toy", (ACTOR, SHARD), (edge,))
    wakeups = {
        "actor": [EventFd.create() for _ in range(4)],
        "shard": [EventFd.create() for _ in range(2)],
    }
    wiring = Wired(program, allocate(layouts(program)), wakeups)
    end = wiring.client_end(edge, 2)
    assert end.own is wakeups["actor"][2]
    assert list(end.peers) == (wakeups["shard"][1:] if edge.split else wakeups["shard"])
    assert end.replica == (0 if edge.split else 2)
    server = wiring._server_end(edge, 1 if edge.split else 0, 1, 0)
    assert server.own is wakeups["shard"][1]
    assert list(server.peers) == (wakeups["actor"][2:] if edge.split else wakeups["actor"])
    for some in wakeups.values():
        for wakeup in some:
            wakeup.close()


def test_a_life_reaches_the_ends() -> None:
    assert wired(WHOLE).client_end(WHOLE, 1, life=3).life == 3


def test_peers_hold_one_end_each_and_serve_nobody() -> None:
    group = Edge("actor", GroupPort("actor", 4, 64), "actor")
    ports = [wired(group).ports_of("actor", rank) for rank in range(4)]
    members = [each.use("gradients") for each in ports]
    assert all(isinstance(member, SharedGroup) for member in members)
    assert [(member.rank, member.size) for member in members] == [(rank, 4) for rank in range(4)]
    assert all(not each.serves for each in ports)


def test_two_edges_of_one_port_are_served_by_source() -> None:
    vitals = [Edge("actor", VitalsPort(4), "shard"), Edge("shard", VitalsPort(2), "shard")]
    program = Program("toy", (ACTOR, SHARD), tuple(vitals))
    wiring = Wired(program, allocate(layouts(program)), in_turn(program))
    ports = wiring.ports_of("shard", 0)
    assert set(ports.serves["vitals"]) == {"actor", "shard"}
    assert [len(ports.serves["vitals"][name].cells) for name in ("actor", "shard")] == [4, 2]
    ports.use("vitals").cells[:] = 1.0
    assert ports.serves["vitals"]["shard"].cells[0].all()
    assert not ports.serves["vitals"]["actor"].cells.any()


def test_ends_that_are_elsewhere_take_the_place_of_memory() -> None:
    far = object()
    wiring = wired(WHOLE, elsewhere={(WHOLE.key, 1, 0): far})
    assert wiring.ports_of("actor", 1).use("actor_state") is far
    assert wiring.ports_of("actor", 2).use("actor_state") is not far
    assert wiring.ports_of("shard", 1).uses == {}, "of the same number, at the other end"


def test_a_replica_whose_edge_is_not_in_this_memory_serves_nobody_here() -> None:
    weights = Edge("actor", WeightsPort(NUMBERS), "shard")
    wiring = wired(weights, arrays={}, elsewhere={(weights.key, 0, 0): object()})
    assert wiring.ports_of("shard", 1).serves == {}
    assert set(wiring.ports_of("actor", 0).uses) == {"params"}


def test_a_part_of_a_split_edge_may_be_alone_here() -> None:
    """A host has only the memory of the replicas that run there."""
    whole = wired(SPLIT)
    prefix = prefix_of(SPLIT, 1)
    here = {name: array for name, array in whole.arrays.items() if name.startswith(prefix)}
    wiring = replace(whole, arrays=here)
    assert wiring.ports_of("shard", 0).serves == {}
    wiring.ports_of("actor", 3).use("actor_state").save(saved(5))
    assert read(wiring, 1, 1) == 5
