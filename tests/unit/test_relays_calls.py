"""Questions, actors' states and vitals carried between hosts by relays."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rookery.core import heartbeat
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import End
from rookery.core.spec import Arrays, ArraySpec
from rookery.transport.actor_states import ActorStatesPort
from rookery.transport.calls import NUM_QUESTIONS, CallPort
from rookery.transport.vitals import VitalsPort
from tests.relayed import (
    CLIENTS,
    FLOAT,
    INT,
    SEEDS,
    USED,
    Hosts,
    Newcomer,
    randomly,
)

CALL = CallPort("evaluation", "", {"score": ArraySpec((2,), FLOAT)})


@SEEDS
def test_questions_and_answers_travel_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hosts = Hosts(CALL, remote=[0], clients=1)
    (server,), (client,) = hosts.servers, hosts.clients[0]
    asked, heard = 0, 0
    skipped: set[int] = set()

    def ask() -> None:
        nonlocal asked
        if client.can_ask():
            client.ask(asked)
            asked += 1
        assert asked - heard <= NUM_QUESTIONS + len(skipped)

    def answer() -> None:
        steps = server.asked_about()
        if steps is None:
            return
        if steps % 7 == 3:
            skipped.add(steps)
            server.skip_one()
        else:
            server.answer(score=np.array([steps, -steps], np.float32))

    def hear() -> None:
        nonlocal heard
        for steps, values in client.answers():
            assert values["score"].tolist() == [steps, -steps]
            assert steps not in skipped
            wanted = next(n for n in range(heard_last[0] + 1, asked) if n not in skipped)
            assert steps == wanted
            heard_last[0] = steps
            heard += 1

    heard_last = [-1]
    for _ in range(2000):
        randomly(rng, hosts, ask, answer, hear)
    hosts.settle()
    while server.asked_about() is not None:
        answer()
    hosts.settle()
    hear()
    assert heard + len(skipped) == asked > 50
    assert client.can_ask()


def test_a_servers_replacement_finds_what_another_host_asked() -> None:
    hosts = Hosts(CALL, remote=[0], clients=1)
    (client,) = hosts.clients[0]
    client.ask(5)
    hosts.settle()
    replacement = CALL.server(End(hosts.memory[0], life=1))
    assert replacement.asked_about() == 5
    replacement.answer(score=np.ones(2, np.float32))
    hosts.settle()
    assert [steps for steps, _ in client.answers()] == [5]


STATES = ActorStatesPort({"arms": ArraySpec((3,), INT), "mean": ArraySpec((), FLOAT)}, CLIENTS)


def state(value: int) -> Arrays:
    return {"arms": np.full(3, value), "mean": np.array(value, np.float32)}


def test_what_an_actor_leaves_is_kept_where_checkpoints_are_made() -> None:
    hosts = Hosts(STATES)
    (states,) = hosts.servers
    for client, (cell,) in enumerate(hosts.clients):
        assert cell.load() is None
        for value in (1, 2):
            cell.save(state(10 * client + value))
    hosts.settle()
    for client in range(CLIENTS):
        found = states.read(client)
        assert found is not None
        assert found["arms"].tolist() == [10 * client + 2] * 3
    assert not any(wire.send(0) or wire.send(1) for wire in hosts.wires.values()), "nor echoed"


def test_what_a_checkpoint_had_reaches_the_actor_and_does_not_come_back() -> None:
    hosts = Hosts(STATES)
    (states,), (cell,) = hosts.servers, hosts.clients[2]
    assert states.write(2, state(7))
    hosts.settle()
    assert cell.load()["mean"] == 7
    assert hosts.clients[0][0].load() is None
    assert int(states.turns[2]) == 1
    cell.save(state(8))
    hosts.settle()
    assert states.read(2)["mean"] == 8


def test_heartbeats_are_told_by_the_clock_of_who_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    port = VitalsPort(CLIENTS, ("replay/steps",))
    hosts = Hosts(port)
    (reader,) = hosts.servers
    assert reader.alive() == {}
    (writer,) = hosts.clients[2]
    beat = Heartbeat(writer.cells)
    beat.cells[heartbeat.START] = time.monotonic() - 50.0
    beat.cells[heartbeat.ENV_SINCE] = time.monotonic() - 20.0
    beat.cells[heartbeat.WAIT_SECS] = 30.0
    writer.tell([5.0])
    wire = hosts.wires[2]
    assert wire.send(0)
    assert not wire.send(0), "about once a second"
    here = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: here() + 4000.0)  # another machine's clock
    assert wire.deliver(0)
    (cells,) = reader.alive().values()
    assert heartbeat.secs_in_env(cells) == pytest.approx(20.0, abs=5.0)
    assert heartbeat.shares(cells)["wait"] == pytest.approx(0.6, abs=0.1)
    assert reader.numbers(2) == {"replay/steps": 5.0}
    assert reader.numbers(0) == {"replay/steps": 0.0}


def test_who_is_not_in_an_environment_is_not_said_to_be() -> None:
    hosts = Hosts(VitalsPort(CLIENTS))
    (reader,), (writer,) = hosts.servers, hosts.clients[0]
    Heartbeat(writer.cells)
    hosts.settle()
    (cells,) = reader.alive().values()
    assert heartbeat.secs_in_env(cells) == 0.0


def test_a_newcomer_begins_with_the_state_that_is_kept() -> None:
    hosts = Hosts(STATES)
    hosts.clients[0][0].save(state(5))
    hosts.settle()
    newcomer = Newcomer(hosts, STATES)
    (cell,) = newcomer.clients
    assert newcomer.wire.send(1), "without being asked"
    newcomer.wire.settle()
    assert cell.load()["mean"] == 5
    cell.save(state(6))
    newcomer.wire.settle()
    assert hosts.servers[0].read(0)["mean"] == 6


def test_a_newcomer_is_not_blamed_for_who_died_in_its_environment() -> None:
    port = VitalsPort(CLIENTS, ("replay/steps",))
    hosts = Hosts(port)
    (reader,), (writer,) = hosts.servers, hosts.clients[0]
    Heartbeat(writer.cells).cells[heartbeat.ENV_SINCE] = time.monotonic() - 20.0
    writer.tell([5.0])
    hosts.settle()
    assert len(reader.alive()) == 1
    newcomer = Newcomer(hosts, port)
    assert reader.alive() == {}, "it has not begun"
    assert reader.numbers(0) == {"replay/steps": 0.0}
    Heartbeat(newcomer.clients[0].cells)
    newcomer.wire.settle()
    (cells,) = reader.alive().values()
    assert heartbeat.secs_in_env(cells) == 0.0


@USED
def test_a_newcomer_hears_no_answers_to_what_another_asked(used: bool) -> None:
    hosts = Hosts(CALL, remote=[0], clients=1)
    (server,), (client,) = hosts.servers, hosts.clients[0]
    for steps in range(NUM_QUESTIONS - 2):
        client.ask(steps)
    hosts.settle()
    server.answer(score=np.zeros(2, np.float32))
    newcomer = Newcomer(hosts, CALL, used=used)
    (again,) = newcomer.clients
    asked = [100 + number for number in range(NUM_QUESTIONS)]
    for steps in asked:
        assert again.can_ask()
        again.ask(steps)
    newcomer.wire.settle()
    answered = []
    while (steps := server.asked_about()) is not None:
        answered.append(steps)
        server.answer(score=np.full(2, steps, np.float32))
        newcomer.wire.settle()
    assert answered == [1, 2, 3, 4, 5, *asked]
    assert [(steps, float(values["score"][0])) for steps, values in again.answers()] == [
        (steps, float(steps)) for steps in asked
    ]


def test_more_questions_than_there_is_room_for_are_refused() -> None:
    hosts = Hosts(CALL, remote=[0], clients=1)
    (_, receiver) = hosts.wires[0].pairs[0]
    for _ in range(2 * NUM_QUESTIONS):
        receiver.accept({"steps": np.array([1])})
    with pytest.raises(RuntimeError, match="questions at once"):
        receiver.accept({"steps": np.array([1])})
