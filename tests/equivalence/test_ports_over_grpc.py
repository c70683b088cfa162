"""What passes through a port over a real socket is what passes in memory, to the bit.

One recorded sequence of puts, takes, questions and answers is played twice: by ends around one
memory, and by ends at two hosts with gRPC between them. What either end saw must not tell which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from rookery.core import heartbeat
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import Port
from rookery.core.records import rollout_spec
from rookery.core.sequence import Sample, StepSpec
from rookery.core.spec import Array, ArraySpec
from rookery.params.compression import Compression
from rookery.transport.actor_states import ActorStatesPort
from rookery.transport.blocks import BlockPort
from rookery.transport.calls import CallPort
from rookery.transport.queue import QueuePort
from rookery.transport.reports import ReportsPort
from rookery.transport.sample_slots import DONE, FREE, SequencesPort
from rookery.transport.shards import ShardPort
from rookery.transport.step_rings import StepsPort
from rookery.transport.vitals import VitalsPort
from rookery.transport.weights import WeightsPort
from tests.linked import Head, Link
from tests.relayed import Hosts

CLIENTS, ENVS, WIDTH = 3, 4, 3
FLOAT, INT, BYTE, BOOL = (np.dtype(name) for name in ("f4", "i8", "u1", "?"))
OBS = {"camera": ArraySpec((4, 21, 21), BYTE), "speed": ArraySpec((3,), FLOAT)}
STEP = StepSpec(
    obs=OBS,
    action=ArraySpec((), INT),
    state={"h": ArraySpec((3,), FLOAT)},
    extra={"q": ArraySpec((), FLOAT)},
)
Settle = Callable[[], None]
Script = Callable[[Any, Settle, np.random.Generator], Iterator[Any]]
"""Plays a sequence and tells what is seen."""


def noise(rng: np.random.Generator, array: Array) -> Array:
    """Anything that the dtype can be; pictures with flat parts, as games have them."""
    if array.dtype == BOOL:
        return rng.random(array.shape) < 0.3
    if array.dtype == BYTE:
        return np.where(rng.random(array.shape) < 0.1, rng.integers(0, 256, array.shape), 7)
    if array.dtype.kind == "i":
        return rng.integers(-(2**30), 2**30, array.shape)
    return rng.normal(size=array.shape)


def fill(rng: np.random.Generator, arrays: Mapping[str, Array]) -> None:
    for array in arrays.values():
        array[...] = noise(rng, array)


def told(arrays: Mapping[str, Array]) -> list[tuple[str, bytes]]:
    return [(name, array.tobytes()) for name, array in arrays.items()]


# ---- what is played ------------------------------------------------------------------------------


def play_steps(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """Steps of three actors, as replay takes them, and what the actors hear."""
    (source,), sinks = hosts.servers, [client[0] for client in hosts.clients]
    source.grant_all()
    for number in range(60):
        settle()
        for sink in sinks:
            if not sink.can_put():
                continue
            steps = sink.reserve()
            ended, valued = (bool(flag) for flag in rng.random(2) < 0.3)
            fill(rng, sink.slot.arrays)
            steps.valid &= ended | ~(steps.terminated | steps.truncated)
            episodes = rng.normal(size=(int(rng.integers(0, ENVS)), WIDTH))
            anew = rng.random(ENVS) < 0.1
            sink.put(steps, episodes, ended=ended, valued=valued, anew=anew)
        settle()
        for _ in range(int(rng.integers(0, 5))):
            if (actor := source.head()) is None:
                continue
            steps, episodes = source.take(actor).read()
            slot = source.take(actor)
            missing = ("final_obs/",) * (steps.final_obs is None)
            missing += ("final_extra/",) * (steps.final_extra is None)
            seen = {
                name: leaf
                for name, leaf in slot.arrays.items()
                if name != "episodes" and not (missing and name.startswith(missing))
            }
            yield number, actor, steps.stream.tolist(), episodes.tolist(), told(seen)
            source.done(actor, ahead=bool(rng.random() < 0.9))
        source.count(100 * number)
        source.grant_all()
        settle()
        yield [sink.can_put() for sink in sinks]


def play_rollouts(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """Weights to three actors, their rollouts back, oldest first."""
    (cell, source), updates = hosts.servers, 0
    mine = [{"p": torch.zeros(50), "n": torch.zeros((), dtype=torch.float64)} for _ in range(3)]
    versions = [-1] * CLIENTS
    for _ in range(30):
        weights = {
            name: torch.as_tensor(noise(rng, like.numpy())) for name, like in mine[0].items()
        }
        cell.publish(updates, weights)
        settle()
        for client, (there, sink) in enumerate(hosts.clients):
            found = there.get(versions[client], mine[client])
            versions[client] = versions[client] if found is None else found
            yield versions[client], [value.numpy().tobytes() for value in mine[client].values()]
            if rng.random() < 0.7 and sink.can_put():
                rollout = sink.reserve()
                fill(rng, rollout.flat())
                rollout.version[...] = versions[client]
                sink.put(rollout)
        settle()
        source.gather(updates)
        while source.can_sample():
            yield told(source.sample().flat())
            source.release()
            updates += 1
            settle()
            source.gather(updates)
        yield source.queue.metrics(), source.missing()


def play_rounds(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """Rounds of rollouts, learned from as a whole."""
    (source,) = hosts.servers
    for _ in range(10):
        settle()
        for (sink,) in hosts.clients:
            while sink.can_put():
                rollout = sink.reserve()
                fill(rng, rollout.flat())
                sink.put(rollout)
        settle()
        assert source.can_sample()
        yield told(source.sample().flat())
        source.release()


def play_batches(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """Batches to a learner, priorities back."""
    (server,), (source,) = hosts.servers, hosts.clients[0]
    slots = server.slots
    for number in range(20):
        for slot in slots.in_state(FREE):
            arrays = {name: array[slot] for name, array in slots.arrays.items() if "slot/" in name}
            fill(rng, arrays)
            keys, odds = rng.integers(0, 2**40, 4), rng.random(4)
            sample = Sample(keys, odds, slots.sequences[slot])
            episodes = rng.normal(size=(int(rng.integers(0, 3)), WIDTH))
            slots.fill(slot, sample, life=1, steps=number, episodes=episodes)
        server.tell(10 * number, True)
        settle()
        for _ in range(int(rng.integers(1, 3))):
            if not source.can_sample():
                continue
            found = source.sample()
            flat = {
                name: array[source.slot]
                for name, array in source.slots.arrays.items()
                if name.startswith("slot/")
            }
            steps, episodes = source.progress()
            yield found.keys.tolist(), found.probability.tolist(), told(flat), steps
            yield episodes.tolist(), source.filling()
            source.release(rng.random(4).astype(FLOAT))
        settle()
        for slot in slots.in_state(DONE):
            back = slots.read(slot, 1)
            assert back is not None
            yield [part.tolist() for part in back]
        settle()


def play_calls(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """Questions, answers, and questions that are skipped."""
    (server,), (client,) = hosts.servers, hosts.clients[0]
    for number in range(30):
        if client.can_ask():
            client.ask(1000 * number)
        settle()
        if rng.random() < 0.8 and (steps := server.asked_about()) is not None:
            yield steps
            if rng.random() < 0.3:
                server.skip_one()
            else:
                server.answer(score=rng.normal(size=int(rng.integers(1, 6))).astype(FLOAT))
        settle()
        yield [(steps, told(values)) for steps, values in client.answers()]


def play_states(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """What actors leave, and what a checkpoint had."""
    (states,) = hosts.servers

    def value() -> dict[str, Array]:
        return {"arms": rng.integers(0, 9, 3), "mean": np.float32(rng.normal()) * np.ones(())}

    for client in range(CLIENTS):
        states.write(client, value())
    for _ in range(20):
        settle()
        for client, (cell,) in enumerate(hosts.clients):
            yield told(cell.load() or {}), told(states.read(client) or {})
            if rng.random() < 0.5:
                cell.save(value())


def play_vitals(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """Heartbeats: moments by whose clock ever, so only what was told is compared."""
    (reader,) = hosts.servers
    for (writer,) in hosts.clients:
        Heartbeat(writer.cells)
        writer.cells[heartbeat.WAIT_SECS] = rng.normal()
        writer.tell(rng.normal(size=2).tolist())
    settle()
    for client in range(CLIENTS):
        yield reader.numbers(client), float(reader.alive()[client][heartbeat.WAIT_SECS])


def play_shards(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """Gradients of three workers, and the weights that they make."""
    server, clients = hosts.servers[0].of_length(40), [client[0] for client in hosts.clients]
    weights, total = torch.zeros(40), torch.zeros(40)
    moments = torch.zeros(5, dtype=torch.float64)
    server.open()
    server.publish(0, total, {"obs": moments})
    settle()
    for client in clients:
        client.of_length(40).pull()
    asked = set(clients)
    for version in range(1, 25):
        settle()
        taken = []
        for request in sorted(server.take(), key=lambda request: request.worker):
            yield request.worker, request.pushes, request.lr, request.weight, request.version
            moments += sum(server.moments(request).values())
            total += server.gradient(request) * request.weight if request.pushes else 0.0
            taken.append(request)
        server.publish(version, total, {"obs": moments})
        for request in taken:
            server.answer(request, 1, staleness=version, steps=server.steps())
        settle()
        for client in clients:
            if client.waits():
                continue
            if client in asked:  # else there may be newer weights here, which were not sent there
                answer = client.take(weights)
                asked.remove(client)
                yield answer, weights.numpy().tobytes(), told_rows(client.shared_moments())
            if rng.random() < 0.7:
                client.count_steps(int(rng.integers(0, 9)))
                gradient = torch.from_numpy(rng.normal(size=40).astype(FLOAT))
                some = {"obs": rng.random(5) + 0.1} if rng.random() < 0.5 else None
                client.push(gradient, lr=float(rng.random()), weight=2.0, moments=some)
                asked.add(client)


def told_rows(rows: Mapping[str, torch.Tensor]) -> list[tuple[str, bytes]]:
    return told({name: row.numpy() for name, row in rows.items()})


def play_reports(hosts: Hosts, settle: Settle, rng: np.random.Generator) -> Iterator[Any]:
    """Updates and episodes of three workers."""
    (session,) = hosts.servers
    for number in range(30):
        settle()
        for (worker,) in hosts.clients:
            if rng.random() < 0.6:
                worker.report({"a": number, "b": rng.normal()}, rng.normal(size=(2, WIDTH)))
        settle()
        yield session.updates.take().tolist(), session.episodes.take().tolist(), session.names()


def rollout(num_envs: int) -> dict[str, ArraySpec]:
    return rollout_spec(
        num_steps=5, num_envs=num_envs, obs=OBS, action=STEP.action, state=STEP.state
    )


PARAMS = {"p": ArraySpec((50,), FLOAT), "n": ArraySpec((), np.dtype("f8"))}
CASES: dict[str, tuple[Script, list[Port], int]] = {
    "steps": (
        play_steps,
        [
            StepsPort(
                STEP,
                num_actors=CLIENTS,
                num_envs=ENVS,
                num_slots=6,
                steps_each=1,
                episode_width=WIDTH,
            )
        ],
        CLIENTS,
    ),
    "rollouts": (
        play_rollouts,
        [
            WeightsPort(PARAMS),
            QueuePort(
                rollout(ENVS), rollout(2 * ENVS), num_actors=CLIENTS, num_envs=ENVS, max_lag=3
            ),
        ],
        CLIENTS,
    ),
    "rounds": (play_rounds, [BlockPort(rollout, num_actors=3, num_envs=2, rounds=2)], CLIENTS),
    "batches": (
        play_batches,
        [SequencesPort(STEP, num_slots=3, num_steps=4, batch_size=4, episode_width=WIDTH)],
        1,
    ),
    "calls": (play_calls, [CallPort("evaluation", "", {"score": ArraySpec((5,), FLOAT)})], 1),
    "states": (
        play_states,
        [ActorStatesPort({"arms": ArraySpec((3,), INT), "mean": ArraySpec((), FLOAT)}, CLIENTS)],
        CLIENTS,
    ),
    "shards": (play_shards, [ShardPort(CLIENTS, 40, Compression(), {"obs": (2,)})], CLIENTS),
    "rounded shards": (
        play_shards,
        [ShardPort(CLIENTS, 40, Compression("bf16"), {"obs": (2,)})],
        CLIENTS,
    ),
    "largest of shards": (
        play_shards,
        [ShardPort(CLIENTS, 40, Compression("topk", 0.2), {"obs": (2,)})],
        CLIENTS,
    ),
    "reports": (play_reports, [ReportsPort(CLIENTS, WIDTH)], CLIENTS),
    "vitals": (play_vitals, [VitalsPort(CLIENTS, ("replay/steps", "replay/rate"))], CLIENTS),
}


@contextmanager
def linked(hosts: Hosts, ports: list[Port]) -> Iterator[Settle]:
    """Every client's host joined to the head by an exchange of its own."""
    with ExitStack() as closing:
        head = closing.enter_context(Head())
        links = []
        for client, wire in hosts.wires.items():
            pairs = [
                (*pair, port.kind == "cell") for pair, port in zip(wire.pairs, ports, strict=True)
            ]
            links.append(Link(head, pairs, f"host-{client}"))

        def settle() -> None:
            for link in links:
                link.settle()

        yield settle
        for link in links:
            link.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", CASES)
def test_what_passes_between_hosts_is_what_passes_in_memory(case: str) -> None:
    script, ports, clients = CASES[case]
    here = Hosts(*ports, remote=[], clients=clients)
    mine = list(script(here, lambda: None, np.random.default_rng(3)))
    there = Hosts(*ports, remote=list(range(clients)), clients=clients)
    with linked(there, ports) as settle:
        theirs = list(script(there, settle, np.random.default_rng(3)))
    assert len(mine) > 2
    for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        assert one == other, number
