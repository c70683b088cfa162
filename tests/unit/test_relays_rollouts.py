"""Rollouts, rounds, queues and weights carried between hosts by relays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rookery.carriers.heap import allocate
from rookery.core.ports import End
from rookery.transport.blocks import BlockPort
from rookery.transport.queue import PUT, TAKEN, QueuePort
from rookery.transport.weights import WeightsPort
from tests.relayed import (
    CLIENTS,
    PARAMS,
    REMOTE,
    SEEDS,
    USED,
    B,
    Hosts,
    Newcomer,
    fill,
    marks,
    params,
    randomly,
    spec,
)
from tests.wired import got


@SEEDS
@pytest.mark.parametrize("rounds", [1, 2])
def test_rounds_are_whole_and_made_by_the_weights_of_the_last_release(
    seed: int, rounds: int
) -> None:
    """However frames are delayed: who may put again has the weights that were published before."""
    rng = np.random.default_rng(seed)
    block = BlockPort(spec, num_actors=CLIENTS, num_envs=B, rounds=rounds)
    hosts = Hosts(WeightsPort(PARAMS), block)
    cell, source = hosts.servers
    cell.publish(0, params(0.0))
    versions, number = [-1] * CLIENTS, [0] * CLIENTS
    updates, mine = 0, [params(-1.0) for _ in range(CLIENTS)]

    def act(client: int) -> None:
        weights, sink = hosts.clients[client]
        if not sink.can_put():
            return
        found = weights.get(versions[client], mine[client])
        versions[client] = versions[client] if found is None else found
        if versions[client] < 0:
            return
        assert (mine[client]["params"] == versions[client]).all()
        assert mine[client]["buffer.count"] == versions[client]
        fill(sink, 100.0 * client + number[client], versions[client])
        number[client] += 1

    def learn() -> None:
        nonlocal updates
        if not source.can_sample():
            return
        batch = source.sample()
        assert (batch.version == updates).all(), "weights older than the release before"
        wanted = [
            100.0 * client + updates * rounds + turn
            for turn in range(rounds)
            for client in range(CLIENTS)
        ]
        assert marks(batch) == wanted
        updates += 1
        cell.publish(updates, params(float(updates)))
        source.release()

    acts = [lambda client=client: act(client) for client in range(CLIENTS)]
    for _ in range(3000):
        randomly(rng, hosts, *acts, learn)
    assert updates > 10


def test_a_round_that_was_not_released_leaves_no_room() -> None:
    hosts = Hosts(BlockPort(spec, num_actors=CLIENTS, num_envs=B, rounds=2))
    (source,) = hosts.servers
    assert [sink.can_put() for (sink,) in hosts.clients] == [False, True, False]
    hosts.settle()
    for client, (sink,) in enumerate(hosts.clients):
        for turn in range(2):
            assert sink.can_put()
            fill(sink, 10.0 * client + turn)
        assert not sink.can_put()
    assert source.missing() == REMOTE, "what is on its way is not there"
    hosts.settle()
    assert source.can_sample()
    assert not any(sink.can_put() for (sink,) in hosts.clients)
    source.release()
    assert [sink.can_put() for (sink,) in hosts.clients] == [False, True, False]
    hosts.settle()
    assert all(sink.can_put() for (sink,) in hosts.clients)


def test_weights_travel_only_when_they_changed_and_only_the_newest() -> None:
    hosts = Hosts(WeightsPort(PARAMS))
    (cell,), wire = hosts.servers, hosts.wires[0]
    (there,) = hosts.clients[0]
    hosts.settle()
    assert got(there) is None, "nothing was published"
    assert not wire.send(1)
    for version in (0, 1, 7):
        cell.publish(version, params(float(version)))
    assert wire.send(1)
    assert len(wire.flying[1]) == 1, "those between are left out"
    hosts.settle()
    found = got(there)
    assert found is not None
    assert found[0] == 7
    assert (found[1]["params"] == 7.0).all()
    assert not wire.send(1), "they are there"
    assert got(there, newer_than=7) is None
    for client in range(CLIENTS):
        assert hosts.clients[client][0].version == 7


def queue_port(**given: Any) -> QueuePort:
    return QueuePort(spec(B), spec(B), num_actors=CLIENTS, num_envs=B, **{"num_slots": 2, **given})


@SEEDS
def test_a_queue_loses_nothing_and_keeps_each_actors_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hosts = Hosts(queue_port())
    (source,) = hosts.servers
    put, learned = [0] * CLIENTS, [0] * CLIENTS

    def act(client: int) -> None:
        (sink,) = hosts.clients[client]
        if sink.can_put():
            fill(sink, 1000.0 * client + put[client], version=put[client])
            put[client] += 1
        assert put[client] - learned[client] <= 3, "two slots, and the batch that is learned from"

    def learn() -> None:
        source.gather(0)
        if source.can_sample():
            (mark,) = marks(source.sample())
            client, number = divmod(int(mark), 1000)
            assert number == learned[client]
            learned[client] += 1
            source.release()

    acts = [lambda client=client: act(client) for client in range(CLIENTS)]
    for _ in range(2000):
        randomly(rng, hosts, *acts, learn)
    for _ in range(20):
        hosts.settle()
        learn()
    assert put == learned
    assert min(put) > 20
    queue = source.queue
    assert queue.count(PUT).tolist() == queue.count(TAKEN).tolist() == put


def test_a_remote_actor_with_full_slots_waits_until_the_learner_has_taken() -> None:
    hosts = Hosts(queue_port())
    (source,), (sink,) = hosts.servers, hosts.clients[2]
    assert not sink.can_put(), "nobody has said that there is room"
    hosts.settle()
    for mark in (1.0, 2.0):
        fill(sink, mark)
    hosts.settle()
    assert not sink.can_put(), "they wait there as they would here"
    source.gather(0)
    assert not sink.can_put()
    hosts.settle()
    assert sink.can_put()
    fill(sink, 3.0)
    assert not sink.can_put()


@USED
def test_rollouts_of_a_newcomer_wait_for_room_behind_those_that_are_there(used: bool) -> None:
    port = queue_port()
    hosts = Hosts(port, remote=[0], clients=1)
    (source,), (sink,) = hosts.servers, hosts.clients[0]
    hosts.settle()
    for mark in (1.0, 2.0):
        fill(sink, mark)
    hosts.settle()
    newcomer = Newcomer(hosts, port, used=used)
    (again,) = newcomer.clients
    found = []
    for mark in (3.0, 4.0, 5.0, 6.0):
        newcomer.wire.settle()
        assert not again.can_put(), "two others wait"
        source.gather(0)
        found += marks(source.sample())
        source.release()
        newcomer.wire.settle()
        assert again.can_put()
        fill(again, mark)
    assert found == [1.0, 2.0, 3.0, 4.0]


@USED
@pytest.mark.parametrize("put", [0, 1, 2])
def test_a_round_that_a_host_has_begun_is_put_whole_by_the_newcomer(put: int, used: bool) -> None:
    """What is whole stays: the learner may read it."""
    port = BlockPort(spec, num_actors=CLIENTS, num_envs=B, rounds=2)
    hosts = Hosts(port, remote=[0])
    (source,) = hosts.servers
    hosts.settle()
    for client in (1, 2):
        for _ in range(2):
            fill(hosts.clients[client][0], float(client))
    for _ in range(put):
        fill(hosts.clients[0][0], 7.0)
    hosts.settle()
    newcomer = Newcomer(hosts, port, used=used)
    (again,) = newcomer.clients
    assert not again.can_put()
    newcomer.wire.settle()
    assert again.can_put() == (put < 2)
    if put < 2:
        assert not source.can_sample()
        for _ in range(2):
            fill(again, 8.0)
        newcomer.wire.settle()
    mark = 8.0 if put < 2 else 7.0
    assert marks(source.sample()) == [mark, 1.0, 2.0] * 2
    source.release()
    newcomer.wire.settle()
    assert again.can_put()


@USED
def test_a_newcomer_has_the_weights_of_this_learner_though_another_was_further(used: bool) -> None:
    port = WeightsPort(PARAMS)
    hosts = Hosts(port, remote=[0], clients=1)
    hosts.servers[0].publish(500, params(500.0))
    hosts.settle()
    hosts.memory = [allocate(port.layout())]  # all went back to a checkpoint
    port.server(End(hosts.memory[0])).publish(300, params(300.0))
    newcomer = Newcomer(hosts, port, used=used)
    newcomer.wire.settle()
    found = got(newcomer.clients[0])
    assert found is not None
    assert (found[0], float(found[1]["params"][0])) == (300, 300.0)
    assert not newcomer.wire.send(1), "once"
