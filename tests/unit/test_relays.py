"""Ports carried between hosts by relays: what comes out is what was put, in order, nothing twice.

A host of a client has memory of ``port.for_one()``, the server's host the whole; frames of two
relays are moved by hand.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from rookery.carriers.heap import allocate
from rookery.core import heartbeat
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import End, Port, Relay
from rookery.core.records import rollout_spec
from rookery.core.sequence import Sample, StepSpec
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.params.compression import Compression
from rookery.transport.actor_states import ActorStatesPort
from rookery.transport.blocks import BlockPort
from rookery.transport.calls import NUM_QUESTIONS, CallPort
from rookery.transport.queue import PUT, TAKEN, QueuePort
from rookery.transport.reports import ReportsPort
from rookery.transport.sample_slots import FREE, SequencesPort
from rookery.transport.shards import APPLIED, VERSION, ShardPort, ShardServer
from rookery.transport.step_rings import StepsPort
from rookery.transport.vitals import VitalsPort
from rookery.transport.weights import WeightsPort
from tests.wired import got

CLIENTS, LOCAL = 3, 1
"""Of three clients the middle one is on the server's host."""
REMOTE = [0, 2]
T, B = 3, 2
FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)


class Wire:
    """Carries frames of pairs of relays between two hosts: each way in order, as they are sent.

    Those given first are asked first, as engines ask cells before streams.
    """

    def __init__(self, *pairs: tuple[Relay, Relay]) -> None:
        for one, other in pairs:
            for sends, receives in ((one.sends, other.receives), (other.sends, one.receives)):
                assert list(sends.items()) == list(receives.items()), "packed by name, in order"
        self.pairs = pairs
        self.flying: tuple[deque[Any], deque[Any]] = (deque(), deque())

    def send(self, side: int) -> bool:
        """All that ``side`` has to send; whether that was anything."""
        before = len(self.flying[side])
        for number, pair in enumerate(self.pairs):
            while (frame := pair[side].next()) is not None:
                specs = pair[side].sends
                for name, array in frame.items():
                    assert (array.shape, array.dtype) == (specs[name].shape, specs[name].dtype)
                copied = {name: array.copy() for name, array in frame.items()}
                self.flying[side].append((number, copied))
        return len(self.flying[side]) > before

    def deliver(self, side: int) -> bool:
        """The oldest frame that ``side`` sent, to the other; False if none flies."""
        if not self.flying[side]:
            return False
        number, frame = self.flying[side].popleft()
        self.pairs[number][1 - side].accept(frame)
        return True

    def settle(self) -> None:
        """Until nothing moves any more."""
        while any([self.send(0), self.send(1), self.deliver(0), self.deliver(1)]):
            pass

    def jolt(self, rng: np.random.Generator) -> None:
        """One of the things that may happen next."""
        (self.send, self.deliver)[rng.integers(2)](int(rng.integers(2)))


class Hosts:
    """Clients of ports, some with hosts of their own, and the servers."""

    def __init__(self, *ports: Port, remote: list[int] = REMOTE, clients: int = CLIENTS) -> None:
        self.memory = [allocate(port.layout()) for port in ports]
        self.servers = [
            port.server(End(memory)) for port, memory in zip(ports, self.memory, strict=True)
        ]
        self.clients: list[list[Any]] = []
        self.wires: dict[int, Wire] = {}
        self.elsewhere: dict[int, list[Arrays]] = {}
        for client in range(clients):
            ends = [End(memory, client) for memory in self.memory]
            if client in remote:
                small = [port.for_one(client) for port in ports]
                there = self.elsewhere[client] = [allocate(port.layout()) for port in small]
                self.wires[client] = Wire(
                    *(
                        (one.client_relay(arrays), port.server_relay(end))
                        for one, arrays, port, end in zip(small, there, ports, ends, strict=True)
                    )
                )
                ends = [End(arrays) for arrays in there]
            else:
                small = list(ports)
            self.clients.append([port.client(end) for port, end in zip(small, ends, strict=True)])

    def settle(self) -> None:
        for wire in self.wires.values():
            wire.settle()

    def jolt(self, rng: np.random.Generator) -> None:
        wires = list(self.wires.values())
        wires[rng.integers(len(wires))].jolt(rng)


SEEDS = pytest.mark.parametrize("seed", range(5))


def randomly(rng: np.random.Generator, hosts: Hosts, *acts: Callable[[], Any]) -> None:
    """One of ``acts``, or something happens to a frame."""
    choice = int(rng.integers(len(acts) + 3))
    if choice < len(acts):
        acts[choice]()
    else:
        hosts.jolt(rng)


def spec(num_envs: int) -> dict[str, ArraySpec]:
    return rollout_spec(
        num_steps=T,
        num_envs=num_envs,
        obs={"obs": ArraySpec((4,), FLOAT)},
        action=ArraySpec((), INT),
        state={"h": ArraySpec((5,), FLOAT)},
    )


def fill(sink: Any, mark: float, version: int = 0) -> None:
    """Put a rollout in which everything is ``mark``."""
    rollout = sink.reserve()
    for name, array in rollout.flat().items():
        array[...] = version if name == "version" else mark
    sink.put(rollout)


def marks(batch: Any) -> list[float]:
    """Of each rollout in a batch, all of whose fields must be alike."""
    found: Array = batch.reward[0, ::B]
    wanted = np.repeat(found, B)
    for name, array in batch.flat().items():
        if name != "version":
            whole = array.reshape(len(wanted), -1) if name.startswith("state/") else array
            columns = whole.T if name.startswith("state/") else np.moveaxis(whole, 1, -1)
            np.testing.assert_array_equal(
                columns, np.broadcast_to(wanted.astype(array.dtype), columns.shape), err_msg=name
            )
    return [float(mark) for mark in found]


# --- rollouts and weights ------------------------------------------------------------------------

PARAMS = {"params": ArraySpec((50,), FLOAT), "buffer.count": ArraySpec((), np.dtype(np.float64))}


def params(value: float) -> dict[str, torch.Tensor]:
    return {
        "params": torch.full((50,), value),
        "buffer.count": torch.full((), value, dtype=torch.float64),
    }


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


# --- queues --------------------------------------------------------------------------------------


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


# --- steps ---------------------------------------------------------------------------------------

STEP = StepSpec(
    obs={"obs": ArraySpec((2,), FLOAT)},
    action=ArraySpec((), INT),
    state={"h": ArraySpec((3,), FLOAT)},
    extra={"q": ArraySpec((), FLOAT)},
)
WIDTH = 3


def steps_port(num_slots: int = 4, steps_each: int = 1) -> StepsPort:
    return StepsPort(
        STEP,
        num_actors=CLIENTS,
        num_envs=B,
        num_slots=num_slots,
        steps_each=steps_each,
        episode_width=WIDTH,
    )


def put_step(sink: Any, number: int) -> None:
    """A step that tells its number; every third ends an episode, every sixth with a value."""
    steps, ended, valued = sink.reserve(), number % 3 == 0, number % 6 == 0
    for leaf in (*steps.obs.values(), *steps.state.values(), *steps.extra.values()):
        leaf[...] = number
    for leaves, there in ((steps.final_obs, ended), (steps.final_extra, valued)):
        for leaf in leaves.values():
            leaf[...] = -number if there else np.nan
    steps.action[...], steps.reward[...] = number, number / 4
    steps.terminated[...], steps.truncated[...] = ended, False
    steps.valid[...] = True
    episodes = np.full((int(ended), WIDTH), float(number))
    anew = np.array([number == 0, False])
    sink.put(steps, episodes, ended=ended, valued=valued, anew=anew)


def check_step(source: Any, client: int, number: int) -> None:
    """The oldest step of ``client`` is ``number``; it is taken."""
    slot = source.take(client)
    steps, episodes = slot.read()
    ended, valued = number % 3 == 0, number % 6 == 0
    assert steps.stream.tolist() == [client * B, client * B + 1]
    for leaf in (*steps.obs.values(), *steps.state.values(), *steps.extra.values(), steps.action):
        assert (leaf == number).all()
    assert (steps.reward == number / 4).all()
    assert (steps.terminated == ended).all()
    assert steps.valid.all()
    for leaves, there in ((steps.final_obs, ended), (steps.final_extra, valued)):
        assert (leaves is not None) == there
        assert all((leaf == -number).all() for leaf in (leaves or {}).values())
    assert episodes.tolist() == [[float(number)] * WIDTH] * int(ended)
    assert slot.anew.tolist() == [number == 0, False]
    source.done(client, ahead=False)


@SEEDS
def test_steps_come_whole_in_order_and_no_more_than_granted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hosts = Hosts(steps_port(num_slots=4, steps_each=2))
    (source,) = hosts.servers
    put, taken = [0] * CLIENTS, [0] * CLIENTS

    def act(client: int) -> None:
        (sink,) = hosts.clients[client]
        if not sink.can_put():
            return
        for _ in range(2):
            put_step(sink, put[client])
            put[client] += 1
        assert put[client] - taken[client] <= 4
        assert sink.total_steps() <= sum(taken)

    def take() -> None:
        client = source.head()
        if client is not None:
            check_step(source, client, taken[client])
            taken[client] += 1
            source.count(sum(taken))

    acts = [lambda client=client: act(client) for client in range(CLIENTS)]
    for _ in range(2000):
        randomly(rng, hosts, *acts, take, source.grant_all)
    for _ in range(2):
        for actor in acts:
            actor()
        hosts.settle()
        while source.head() is not None:
            take()
        source.grant_all()
        hosts.settle()
    assert put == taken
    assert min(put) > 20
    told = [sink.total_steps() for (sink,) in hosts.clients]
    assert told == [sum(taken)] * CLIENTS, "whoever may put more knows how far the run is"


def test_remote_actors_take_turns_like_local_ones() -> None:
    hosts = Hosts(steps_port(steps_each=2))
    (source,) = hosts.servers
    order: list[int] = []
    for turn in range(9):
        source.grant_next(2 * turn)
        hosts.settle()
        (client,) = [c for c, (sink,) in enumerate(hosts.clients) if sink.can_put()]
        for step in range(2):
            put_step(hosts.clients[client][0], turn // 3 * 2 + step)
        hosts.settle()
        for step in range(2):
            check_step(source, client, turn // 3 * 2 + step)
        order.append(client)
    assert order == [0, 1, 2] * 3


# --- sequences -----------------------------------------------------------------------------------

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


# --- calls ---------------------------------------------------------------------------------------

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


# --- actors' states, vitals ----------------------------------------------------------------------

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


# --- a host that takes another's place -----------------------------------------------------------


class Newcomer:
    """A host that takes the place of one that has gone: its memory is new, that of the server not.

    What flew is lost. With ``used`` it keeps the memory it had, and only the link is new.
    """

    def __init__(self, hosts: Hosts, *ports: Port, client: int = 0, used: bool = False) -> None:
        small = [port.for_one(client) for port in ports]
        there = [allocate(port.layout()) for port in small]
        arrays = hosts.elsewhere[client] if used else there
        ends = [End(memory, client, life=1) for memory in hosts.memory]
        self.wire = Wire(
            *(
                (one.client_relay(mine), port.server_relay(end))
                for one, mine, port, end in zip(small, arrays, ports, ends, strict=True)
            )
        )
        self.clients: list[Any] = [
            port.client(End(mine)) for port, mine in zip(small, arrays, strict=True)
        ]


USED = pytest.mark.parametrize("used", [False, True])


@USED
def test_steps_of_a_newcomer_follow_those_that_were_there(used: bool) -> None:
    """Its host counts from 0, the server goes on; what waits takes its room."""
    port = steps_port(num_slots=4)
    hosts = Hosts(port, remote=[0], clients=1)
    (source,), (sink,) = hosts.servers, hosts.clients[0]
    source.grant_all()
    hosts.settle()
    for number in range(3):
        put_step(sink, number)
    hosts.settle()
    for number in range(2):
        check_step(source, 0, number)
    source.grant_all()
    hosts.settle()
    put_step(sink, 77)
    hosts.wires[0].send(0)  # and never arrives
    newcomer = Newcomer(hosts, port, used=used)
    (again,) = newcomer.clients
    assert not again.can_put(), "it does not know that there is room"
    newcomer.wire.settle()
    for number in range(3):
        assert again.can_put()
        put_step(again, number)
    assert not again.can_put(), "one of four still waits"
    newcomer.wire.settle()
    for number in (2, 0, 1, 2):
        check_step(source, 0, number)
    assert source.head() is None


@pytest.mark.parametrize("header", [[-1, 0, 0], [99, 0, 0], [0, 2, 0], [0, 0, -1], [0, 0, 0]])
def test_a_step_whose_header_does_not_fit_is_refused(header: list[int]) -> None:
    """Replay would fail at it, and with it the run."""
    hosts = Hosts(steps_port(), remote=[0], clients=1)
    (source,), wire = hosts.servers, hosts.wires[0]
    source.grant_all()
    hosts.settle()
    put_step(hosts.clients[0][0], 1)
    frame = wire.pairs[0][0].next()
    assert frame is not None
    wrong = frame | {"header": np.array([*header, 0, 0, 0, 0, 0])}
    wrong["terminated"] = np.ones_like(frame["terminated"])
    with pytest.raises(ValueError, match=r"a header|last observation is missing"):
        wire.pairs[0][1].accept(wrong)
    assert source.rings.waiting(0) == 0
    wire.pairs[0][1].accept(wrong | {"header": frame["header"], "valid": frame["valid"] & False})
    assert source.rings.waiting(0) == 1, "what is not valid may say anything"


def test_an_actor_with_room_is_not_told_of_each_step_that_was_taken() -> None:
    """A message for each would cost as much as the steps themselves."""
    hosts = Hosts(steps_port(num_slots=4), remote=[0], clients=1)
    (source,), (sink,) = hosts.servers, hosts.clients[0]
    sender, receiver = hosts.wires[0].pairs[0]
    source.grant_all()
    hosts.settle()
    told = []
    for number in range(8):
        assert sink.can_put()
        put_step(sink, number)
        frame = sender.next()
        assert frame is not None
        receiver.accept(frame)
        check_step(source, 0, number)
        source.grant_all()
        counts = receiver.next()
        told.append(counts is not None)
        if counts is not None:
            sender.accept(counts)
    assert told == [False, True] * 4


def test_a_step_beyond_what_was_granted_is_refused() -> None:
    hosts = Hosts(steps_port(), remote=[0], clients=1)
    (source,), wire = hosts.servers, hosts.wires[0]
    source.grant_all()
    hosts.settle()
    put_step(hosts.clients[0][0], 1)
    frame = wire.pairs[0][0].next()
    assert frame is not None
    for _ in range(4):
        wire.pairs[0][1].accept(frame)
    with pytest.raises(RuntimeError, match="not granted"):
        wire.pairs[0][1].accept(frame)
    assert source.rings.waiting(0) == 4


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


# --- reports -------------------------------------------------------------------------------------


def reported(session: Any) -> tuple[list[float], list[float]]:
    return (
        session.updates.take()[:, 0].tolist(),
        session.episodes.take()[:, 0].tolist(),
    )


@SEEDS
def test_updates_are_told_once_and_behind_their_episodes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookery.transport.reports.UPDATES_KEPT", 4)
    hosts, rng = Hosts(ReportsPort(CLIENTS, 2, episodes_kept=6)), np.random.default_rng(seed)
    (session,) = hosts.servers
    told = [0] * CLIENTS
    heard: tuple[list[float], list[float]] = ([], [])

    def report() -> None:
        client = int(rng.integers(CLIENTS))
        (end,) = hosts.clients[client]
        if end.can_report(3):
            number = 1000.0 * client + told[client]
            end.report({"train/loss": number}, np.full((int(rng.integers(1, 4)), 2), number))
            told[client] += 1

    def read() -> None:
        updates, episodes = reported(session)
        heard[0].extend(updates)
        heard[1].extend(episodes)
        assert set(updates) <= set(heard[1]) | set(session.episodes.take()[:, 0].tolist())

    for _ in range(600):
        randomly(rng, hosts, report, read)
    for _ in range(5):
        hosts.settle()
        updates, episodes = reported(session)
        heard[0].extend(updates)
        heard[1].extend(episodes)
    for client in range(CLIENTS):
        own = [number for number in heard[0] if number // 1000 == client]
        assert own == [1000.0 * client + number for number in range(told[client])]
    assert min(told) > 5
    assert session.names() == ["train/loss"]


def test_a_newcomers_reports_wait_for_room_behind_those_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rookery.transport.reports.UPDATES_KEPT", 4)
    port = ReportsPort(1, 2)
    memory = allocate(port.layout())
    session, before = port.server(End(memory)), port.client(End(memory))
    for number in range(3):
        before.report({"train/loss": float(number)}, np.zeros((0, 2)))
    arrays = allocate(port.for_one(0).layout())
    worker = port.for_one(0).client(End(arrays))
    wire = Wire((port.for_one(0).client_relay(arrays), port.server_relay(End(memory))))
    for number in range(3, 6):
        worker.report({"train/loss": float(number)}, np.zeros((0, 2)))
    wire.settle()
    assert reported(session)[0] == [0.0, 1.0, 2.0, 3.0]
    wire.settle()
    assert reported(session)[0] == [4.0, 5.0]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ({"names": b'["steps", "train/loss"]'}, None),
        ({"names": b'["train/loss"]'}, "names that are none"),
        ({"names": b'"steps"'}, "names that are none"),
        ({"names": b'["steps", 1]'}, "names that are none"),
        ({"names": b"[steps"}, "Expecting value"),
        ({"update": [8.0, np.nan]}, None),
        ({"update": [np.nan, 0.0]}, "counts that are none"),
        ({"update": [-1.0, 0.0]}, "counts that are none"),
        ({"update": [np.inf, 0.0]}, "counts that are none"),
    ],
)
def test_reports_that_the_session_could_not_count_are_refused(frame: Any, said: str | None) -> None:
    port = ReportsPort(1, 2, counts=("steps",))
    relay = port.server_relay(End(allocate(port.layout())))
    ((name, value),) = frame.items()
    spec = port.row_specs()[name]
    array = np.zeros(spec.shape, spec.dtype)
    given = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else np.array(value)
    array[: len(given)] = given
    with pytest.raises(ValueError, match=said) if said else nullcontext():
        relay.accept({name: array})


# --- shards --------------------------------------------------------------------------------------

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
