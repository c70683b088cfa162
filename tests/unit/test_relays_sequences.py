"""Batches of sequences carried between hosts by relays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rookery.core.sequence import Sample
from rookery.transport.sample_slots import FREE, SequencesPort
from tests.relayed import (
    CLIENTS,
    REMOTE,
    SEEDS,
    STEP,
    WIDTH,
    Hosts,
    Newcomer,
    randomly,
)

BATCH, LENGTH, SLOTS = 4, 2, 6


def sequences_port(stride: int) -> SequencesPort:
    return SequencesPort(
        STEP,
        num_slots=SLOTS,
        num_steps=LENGTH,
        batch_size=BATCH,
        episode_width=WIDTH,
        stride=stride,
    )


def fill_batch(server: Any, slot: int, number: int) -> None:
    slots, value = server.slots, float(number)
    sequences = slots.sequences[slot]
    sequences.reward[...], sequences.obs["obs"][...] = value, value
    keys = np.arange(BATCH) + BATCH * number
    sample = Sample(keys, np.full(BATCH, 1.0 / (number + 1)), sequences)
    slots.fill(
        slot, sample, life=3, steps=10 * number, episodes=np.full((number % 3, WIDTH), value)
    )


@pytest.mark.slow
@SEEDS
@pytest.mark.parametrize("remote", [[0], REMOTE, [0, 1, 2]])
def test_batches_come_once_and_their_priorities_go_back(seed: int, remote: list[int]) -> None:
    """Learners with batches of their own, whichever of them are elsewhere."""
    rng = np.random.default_rng(seed)
    hosts = Hosts(sequences_port(stride=CLIENTS), remote=remote)
    (server,) = hosts.servers
    filled, learned = 0, [0] * CLIENTS
    by_slot: dict[int, int] = {}
    back: dict[int, float] = {}
    seen: list[list[int]] = [[] for _ in range(CLIENTS)]

    def serve() -> None:
        nonlocal filled
        for slot in server.slots.in_state(3):
            told = server.slots.read(slot, life=3)
            assert told is not None
            keys, priorities = told
            number = by_slot.pop(slot)
            assert keys.tolist() == [BATCH * number + n for n in range(BATCH)]
            assert number not in back
            assert len(set(priorities.tolist())) == 1
            back[number] = float(priorities[0])
        for slot in server.slots.in_state(FREE):
            fill_batch(server, slot, filled)
            by_slot[slot] = filled
            filled += 1
        server.tell(10 * filled, True)

    def learn(client: int) -> None:
        (source,) = hosts.clients[client]
        if not source.can_sample():
            return
        sample = source.sample()
        number = int(sample.sequences.reward[0, 0])
        assert (sample.sequences.reward == number).all()
        assert (sample.sequences.obs["obs"] == number).all()
        assert sample.keys.tolist() == [BATCH * number + n for n in range(BATCH)]
        np.testing.assert_allclose(sample.probability, 1.0 / (number + 1))
        steps, episodes = source.progress()
        assert (steps, episodes.tolist()) == (10 * number, [[float(number)] * WIDTH] * (number % 3))
        seen[client].append(number)
        source.release(np.full(BATCH, number + 0.5, np.float32))
        learned[client] += 1

    acts = [lambda client=client: learn(client) for client in range(CLIENTS)]
    for _ in range(3000):
        randomly(rng, hosts, *acts, serve)
    assert min(learned) > 20
    everything = [number for numbers in seen for number in numbers]
    assert len(set(everything)) == len(everything)
    for numbers in seen:
        assert numbers == sorted(numbers)
    assert all(priority == number + 0.5 for number, priority in back.items())
    assert len(everything) - len(back) <= SLOTS
    assert filled - len(back) <= SLOTS, "no more than there are slots"


def test_a_remote_learner_hears_how_far_replay_is_while_it_fills() -> None:
    hosts = Hosts(sequences_port(stride=1), remote=[0], clients=1)
    (server,), (source,) = hosts.servers, hosts.clients[0]
    assert source.filling()
    server.tell(40, False)
    hosts.settle()
    assert source.total_steps() == 40
    assert source.filling()
    assert not source.can_sample()
    server.tell(80, True)
    fill_batch(server, 0, 1)
    hosts.settle()
    assert source.total_steps() == 80
    assert not source.filling()
    assert source.can_sample()


def test_batches_that_a_learner_took_with_it_are_filled_anew() -> None:
    port = sequences_port(stride=1)
    hosts = Hosts(port, remote=[0], clients=1)
    (server,), (source,) = hosts.servers, hosts.clients[0]
    for number in range(SLOTS):
        fill_batch(server, number, number)
    hosts.settle()
    source.sample()
    assert server.slots.in_state(FREE) == []
    newcomer = Newcomer(hosts, port)
    (again,) = newcomer.clients
    assert server.slots.in_state(FREE) == list(range(SLOTS))
    fill_batch(server, 0, 20)
    newcomer.wire.settle()
    assert again.sample().sequences.reward[0, 0] == 20
    again.release(np.full(BATCH, 2.5, np.float32))
    newcomer.wire.settle()
    told = server.slots.read(0, life=3)
    assert told is not None
    assert told[1].tolist() == [2.5] * BATCH


@pytest.mark.parametrize("token", [-1, 0, SLOTS, 2**40])
def test_priorities_of_a_batch_that_was_not_sent_are_refused(token: int) -> None:
    hosts = Hosts(sequences_port(stride=1), remote=[0], clients=1)
    (_, sender) = hosts.wires[0].pairs[0]
    priorities = np.ones(BATCH, np.float32)
    with pytest.raises(RuntimeError, match="was not sent"):
        sender.accept({"token": np.array([token]), "priorities": priorities})
