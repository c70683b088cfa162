"""Requests for actions: who may ask, who answers, and what is nobody's any more."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from rookery.carriers.heap import allocate
from rookery.core.ports import End
from rookery.core.signature import Signature
from rookery.core.spec import Arrays, ArraySpec, LeafSpec
from rookery.envs.transition import StepResult
from rookery.transport.eventfd import EventFd
from rookery.transport.requests import RequestClient, RequestServer, RequestsPort, Seat
from rookery.transport.several import Several
from rookery.transport.step_rings import StepsPort
from tests.relayed import STEP, Hosts

ACTORS, PARTS, ENVS = 3, 2, 2
FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
OBS = LeafSpec("box", (3,), FLOAT)
SIGNATURE = Signature({"obs": OBS}, LeafSpec("discrete", (), INT, sizes=(1 << 30,)))
PORT = RequestsPort(
    obs={"obs": OBS.array},
    action=ArraySpec((), INT),
    info_keys=("x_pos",),
    num_actors=ACTORS,
    num_parts=PARTS,
    num_envs=ENVS,
)


def result(number: float, *, ended: bool = False, begins: bool = False) -> StepResult:
    """What a step did, all of it made of ``number``."""
    flags = np.zeros(ENVS, np.bool_)
    return StepResult(
        obs={"obs": np.full((ENVS, 3), number, FLOAT)},
        reward=np.full(ENVS, number),
        terminated=np.array([ended, False]),
        truncated=flags,
        valid=~flags,
        reset=np.full(ENVS, begins),
        final_obs={"obs": np.full((ENVS, 3), -number, FLOAT)} if ended else None,
        info={"x_pos": np.full(ENVS, 2 * number)} if ended else {},
        whole_ended=flags if ended else None,
    )


def served(arrays: Arrays, life: int) -> tuple[RequestServer, list[list[Seat]]]:
    """A server's life, and its seats by actor and part."""
    server = RequestServer(End(arrays))
    server.open(life)
    parts = range(PARTS)
    seats = [[server.seat(actor, part, SIGNATURE) for part in parts] for actor in range(ACTORS)]
    return server, seats


class Table:
    """Actors and their server around one memory."""

    def __init__(self) -> None:
        self.arrays = allocate(PORT.layout())
        self.clients: list[RequestClient] = [
            PORT.client(End(self.arrays, actor)) for actor in range(ACTORS)
        ]
        self.server, self.seats = self.serve()

    def serve(self, life: int = 0) -> tuple[RequestServer, list[list[Seat]]]:
        server = RequestServer(End(self.arrays, peers=[End({}).own] * ACTORS))
        server.open(life)
        seats = [
            [server.seat(actor, part, SIGNATURE) for part in range(PARTS)]
            for actor in range(ACTORS)
        ]
        return server, seats


def welcomed(client: RequestClient, server: RequestServer, actor: int) -> None:
    assert client.must_greet()
    client.greet()
    assert not client.welcome()
    assert server.newcomers() == [actor]
    server.welcome(actor, server.greeting(actor))
    assert client.welcome()
    assert not client.must_greet()


def test_a_request_is_answered_once_and_by_a_version() -> None:
    table = Table()
    (client, *_), seat = table.clients, table.seats[0][1]
    welcomed(client, table.server, 0)
    assert not seat.arrived()
    client.ask(1, result(1, begins=True))
    assert seat.arrived()
    assert not client.answered(1)
    assert (seat.reset()["obs"] == 1).all()
    assert seat.finish_step().reset.all()
    table.server.version = 7
    seat.begin_step(np.array([4, 5]))
    assert not seat.arrived()
    assert client.answered(1)
    assert not client.answered(0)
    assert client.take(1).tolist() == [4, 5]
    assert table.arrays["answered"][0, 1, 1] == 7
    assert not client.answered(1), "taken once"
    client.ask(1, result(2, ended=True))
    seen = seat.finish_step()
    assert seen.reward.tolist() == [2, 2]
    assert seen.terminated.tolist() == [True, False]
    assert seen.final_obs is not None
    assert (seen.final_obs["obs"] == -2).all()
    assert seen.info["x_pos"].tolist() == [4, 4]
    assert not seen.episode_ended().any(), "a life was lost, and the game goes on"
    seat.begin_step(np.array([1, 1]))
    client.take(1)
    client.ask(1, result(3))
    seen = seat.finish_step()
    assert seen.final_obs is None
    assert seen.whole_ended is None


def test_who_takes_an_actors_place_does_not_get_its_answer() -> None:
    table = Table()
    welcomed(table.clients[1], table.server, 1)
    table.clients[1].ask(0, result(1, begins=True))
    another = PORT.client(End(table.arrays, 1))
    assert not another.welcome()
    another.greet()
    assert not another.answered(0)
    seat = table.seats[1][0]
    assert seat.arrived(), "the server may still be reading"
    table.server.welcome(1, table.server.greeting(1))
    assert not seat.arrived(), "what the one before asked is forgotten"
    another.ask(0, result(9, begins=True))
    assert (seat.finish_step().obs["obs"] == 9).all()
    seat.begin_step(np.array([3, 3]))
    assert another.take(0).tolist() == [3, 3]


def test_a_server_in_anothers_place_is_greeted_anew() -> None:
    table = Table()
    client = table.clients[2]
    welcomed(client, table.server, 2)
    client.ask(0, result(1, begins=True))
    server, seats = table.serve(life=1)
    assert server.newcomers() == [], "a greeting of the server before is none"
    assert not client.welcome()
    welcomed(client, server, 2)
    assert not client.answered(0)
    client.ask(0, result(2, begins=True))
    assert seats[2][0].arrived()


def test_over_a_network_the_same_is_seen() -> None:
    """Actors 0 and 2 are on hosts of their own; their relays see a server replaced, too."""

    def play(remote: list[int]) -> list[Any]:
        hosts = Hosts(PORT, remote=remote)
        clients: list[RequestClient] = [ends[0] for ends in hosts.clients]
        seen: list[Any] = []
        for life in range(2):
            server, seats = served(hosts.memory[0], life)
            hosts.settle()
            for client in clients:
                assert client.must_greet()
                client.greet()
            hosts.settle()
            for actor in server.newcomers():
                server.welcome(actor, server.greeting(actor))
            hosts.settle()
            assert all(client.welcome() for client in clients)
            for number in range(1, 6):
                for actor, client in enumerate(clients):
                    for part in range(PARTS):
                        if number == 1 or client.answered(part):
                            if number > 1:
                                seen.append(client.take(part).tolist())
                            client.ask(part, result(100 * actor + number, ended=number == 3))
                hosts.settle()
                for row in seats:
                    for seat in row:
                        step = seat.finish_step()
                        seen.append((seat.arrived(), step.obs["obs"].tolist()))
                        seen.append(step.final_obs is None or step.final_obs["obs"].tolist())
                        server.version = number
                        seat.begin_step(np.array([number, seat.actor]))
                hosts.settle()
        return seen

    told = play(remote=[0, 2])
    assert told == play(remote=[])
    assert len(told) == 168


def test_over_a_network_nothing_asked_before_a_greeting_follows_it() -> None:
    """The server is replaced while a host's actor steps; the answer of that step is nobody's."""
    hosts = Hosts(PORT, remote=[0])
    server, seats = served(hosts.memory[0], 0)
    client: RequestClient = hosts.clients[0][0]
    hosts.settle()
    client.greet()
    hosts.settle()
    server.welcome(0, server.greeting(0))
    hosts.settle()
    client.ask(0, result(1, begins=True))
    hosts.settle()
    seats[0][0].begin_step(np.zeros(ENVS, int))
    hosts.settle()
    client.take(0)
    server, seats = served(hosts.memory[0], 1)
    hosts.settle()
    client.ask(0, result(77))  # of the episode before
    client.greet()
    wire = hosts.wires[0]
    wire.send(0)
    while wire.deliver(0):
        if server.newcomers():
            server.welcome(0, server.greeting(0))
            wire.send(1)
    hosts.settle()
    assert client.welcome()
    assert not seats[0][0].arrived()
    client.ask(0, result(5, begins=True))
    hosts.settle()
    assert (seats[0][0].reset()["obs"] == 5).all()


def test_a_host_cannot_ask_twice() -> None:
    hosts = Hosts(PORT, remote=[0])
    (server,) = hosts.servers
    server.open(0)
    hosts.settle()
    client: RequestClient = hosts.clients[0][0]
    client.greet()
    hosts.settle()
    server.welcome(0, server.greeting(0))
    hosts.settle()
    client.ask(0, result(1, begins=True))
    client.ask(0, result(2))
    frame = hosts.wires[0].pairs[0][0].next()
    assert frame is not None
    receiver = hosts.wires[0].pairs[0][1]
    receiver.accept(frame)
    for part in (0, 7, -1):
        with pytest.raises(RuntimeError, match="has none to make"):
            receiver.accept(frame | {"part": np.array([part])})


def test_four_actors_at_once_are_each_answered_once_by_the_version_named() -> None:
    """Threads and real wake-ups: an answer is a function of who asked what, and of the version."""
    rounds, own = 400, EventFd.create()
    wakeups = [EventFd.create() for _ in range(4)]
    port = RequestsPort(PORT.obs, PORT.action, (), num_actors=4, num_parts=PARTS, num_envs=ENVS)
    arrays = allocate(port.layout())
    wrong: list[str] = []

    def act(actor: int) -> None:
        client = port.client(End(arrays, actor, own=wakeups[actor], peers=[own]))
        while client.must_greet():
            client.greet()
        while not client.welcome():
            client.wait(1.0)
        asked = [0] * PARTS
        for part in range(PARTS):
            client.ask(part, result(0, begins=True))
        while min(asked) < rounds:
            for part in range(PARTS):
                if client.answered(part):
                    version = int(arrays["answered"][actor, part, 1])
                    found, due = client.take(part)[0], asked[part] * 1000 + actor * 10 + part
                    if found != due + version * 1_000_000:
                        wrong.append(f"{actor}/{part}: {found} for {due} by {version}")
                    asked[part] += 1
                    client.ask(part, result(asked[part]))
            client.wait(0.01)

    server = port.server(End(arrays, own=own, peers=wakeups))
    server.open(0)
    seats = [server.seat(actor, part, SIGNATURE) for actor in range(4) for part in range(PARTS)]
    threads = [threading.Thread(target=act, args=(actor,), daemon=True) for actor in range(4)]
    for thread in threads:
        thread.start()
    answers = dict.fromkeys(range(len(seats)), 0)
    while any(thread.is_alive() for thread in threads):
        for actor in server.newcomers():
            server.welcome(actor, server.greeting(actor))
        server.version = (server.version + 1) % 100
        for index, seat in enumerate(seats):
            if seat.arrived():
                number = int(seat.finish_step().reward[0])
                assert number == answers[index], "in order, none left out"
                answers[index] += 1
                due = number * 1000 + seat.actor * 10 + seat.part
                seat.begin_step(np.full(ENVS, due + server.version * 1_000_000))
        server.wait(0.01)
    assert wrong == []
    assert min(answers.values()) >= rounds


def test_several_clients_in_one_replica() -> None:
    """Each has its place in the memory, and wakes the replica that holds it."""

    class Bell:
        def __init__(self) -> None:
            self.rung = 0

        def notify(self) -> None:
            self.rung += 1

        def wait(self, timeout_secs: float) -> None:
            """Never."""

    port = StepsPort(STEP, num_actors=4, num_envs=2, num_slots=4, steps_each=1, episode_width=2)
    several, bells = Several(port, 2), [Bell(), Bell()]
    arrays = allocate(several.layout())
    source = several.server(End(arrays, peers=bells))
    sinks = [several.client(End(arrays, replica)) for replica in range(2)]
    assert [sink.actor for pair in sinks for sink in pair] == [0, 1, 2, 3]
    source.grant_all()
    sink = sinks[1][0]
    sink.put(sink.reserve(), np.empty((0, 2)), ended=False, valued=False)
    assert source.head() == 2
    source.done(2, ahead=True)
    assert [bell.rung for bell in bells] == [0, 1]
    assert (several.name, several.kind, several.traffic()) == (port.name, port.kind, port.traffic())
