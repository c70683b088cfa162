"""Gradients and parameters carried between hosts by relays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rookery.core.ports import End
from rookery.params.compression import Compression
from rookery.transport.shards import APPLIED, VERSION, ShardPort, ShardServer
from tests.relayed import (
    CLIENTS,
    REMOTE,
    SEEDS,
    Hosts,
    randomly,
)

WIDE = 7


def shard_port() -> ShardPort:
    return ShardPort(CLIENTS, WIDE, Compression(), {"obs": (2,)})


class Adder:
    """A server that adds up whatever comes, at once."""

    def __init__(self, server: ShardServer) -> None:
        self.server = server.of_length(WIDE)
        self.total, self.version = torch.zeros(WIDE), 0
        self.moments = torch.zeros(5, dtype=torch.float64)
        self.server.open()
        self.publish()

    def publish(self) -> None:
        self.server.publish(self.version, self.total, {"obs": self.moments})

    def turn(self) -> None:
        for request in self.server.take():
            for row in self.server.moments(request).values():
                self.moments += row
            if request.pushes:
                self.total += self.server.gradient(request) * request.weight
                self.version += 1
            self.publish()
            age = self.version - request.version
            self.server.answer(request, APPLIED, staleness=age, steps=self.server.steps())


@SEEDS
def test_gradients_are_added_once_whoever_comes_back(seed: int) -> None:
    """Of each gradient that was answered; one that was in flight with who died, once or never."""
    hosts, rng = Hosts(shard_port()), np.random.default_rng(seed)
    adder = Adder(hosts.servers[0])
    clients = [client[0].of_length(WIDE) for client in hosts.clients]
    weights = [torch.zeros(WIDE) for _ in range(CLIENTS)]
    for client in clients:
        client.pull()
    counted, begun, pushed = 0.0, [False] * CLIENTS, [0.0] * CLIENTS
    in_flight = 0.0

    def act() -> None:
        nonlocal counted
        number = int(rng.integers(CLIENTS))
        client = clients[number]
        if client.lost():
            begun[number] = False
            client.pull()
        if client.waits() or client.take(weights[number]) is None:
            return
        counted += pushed[number]
        value = float(rng.integers(1, 9))
        client.count_steps(1)
        moments = {"obs": np.ones(5)}
        client.push(torch.full((WIDE,), value), lr=0.1, weight=2.0, moments=moments)
        begun[number], pushed[number] = True, 2 * value

    def die() -> None:
        nonlocal in_flight
        if rng.random() > 0.1:
            return
        number = int(rng.integers(CLIENTS))
        arrays = hosts.elsewhere[number][0] if number in REMOTE else hosts.memory[0]
        port = shard_port().for_one(number) if number in REMOTE else shard_port()
        end = End(arrays, 0 if number in REMOTE else number)
        in_flight += pushed[number]
        clients[number], pushed[number] = port.client(end).of_length(WIDE), 0.0
        clients[number].pull()

    for _ in range(800):
        randomly(rng, hosts, act, die, adder.turn)
    for _ in range(6):
        hosts.settle()
        adder.turn()
    counted += sum(pushed)
    total = float(adder.total[0])
    assert total == float(adder.total[-1])
    assert counted <= total <= counted + in_flight
    assert adder.version > 20
    assert adder.server.steps() >= adder.version
    assert float(adder.moments[0]) == adder.version


def test_a_server_in_anothers_place_answers_nobody_who_asked_before() -> None:
    hosts = Hosts(shard_port())
    first = Adder(hosts.servers[0])
    clients = [client[0].of_length(WIDE) for client in hosts.clients]
    weights = torch.zeros(WIDE)
    for client in clients:
        client.pull()
    for _ in range(4):
        hosts.settle()
        first.turn()
        for client in clients:
            if client.lost():
                client.pull()
    for client in clients:
        assert client.take(weights) is not None
        client.push(torch.ones(WIDE), lr=0.1, weight=1.0)
    hosts.settle()
    second = Adder(shard_port().server(End(hosts.memory[0])))
    for _ in range(4):
        hosts.settle()
        second.turn()
    assert float(second.total.abs().sum()) == 0.0
    assert all(client.lost() for client in clients)
    for client in clients:
        client.pull()
    for _ in range(4):
        hosts.settle()
        second.turn()
    for client in clients:
        answer = client.take(weights)
        assert answer is not None
        client.push(torch.ones(WIDE), lr=0.1, weight=1.0)
    hosts.settle()
    second.turn()
    assert float(second.total[0]) == CLIENTS


def test_a_gradient_before_an_answer_is_refused() -> None:
    hosts = Hosts(shard_port(), remote=[0])
    Adder(hosts.servers[0])
    (client,) = hosts.clients[0]
    client.of_length(WIDE)
    hosts.settle()
    client.pull()
    hosts.settle()
    client.push(torch.ones(WIDE), lr=0.1, weight=1.0)
    with pytest.raises(RuntimeError, match="before the question before it was answered"):
        hosts.settle()


def test_a_gradient_of_weights_that_are_not_there_yet_is_refused() -> None:
    hosts = Hosts(shard_port(), remote=[0])
    adder = Adder(hosts.servers[0])
    (client,) = hosts.clients[0]
    client.of_length(WIDE)
    hosts.settle()
    client.pull()
    hosts.settle()
    adder.turn()
    hosts.settle()
    assert client.take(torch.zeros(WIDE)) is not None
    client.push(torch.ones(WIDE), lr=0.1, weight=1.0)
    sender, receiver = hosts.wires[0].pairs[0]
    frame = sender.next()
    assert frame is not None
    late = {name: np.array(array) for name, array in frame.items()}
    late["asked"][VERSION] = adder.version + 1
    with pytest.raises(RuntimeError, match="a gradient of weights 1, which there are not yet"):
        receiver.accept(late)
    receiver.accept(frame)
