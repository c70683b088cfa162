"""Ports carried between hosts by relays: what comes out is what was put, in order, nothing twice.

A host of a client has memory of ``port.for_one()``, the server's host the whole; frames of two
relays are moved by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rookery.carriers.heap import allocate
from rookery.core.ports import End, Port, Relay
from rookery.core.records import rollout_spec
from rookery.core.sequence import StepSpec
from rookery.core.spec import Array, Arrays, ArraySpec

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


PARAMS = {"params": ArraySpec((50,), FLOAT), "buffer.count": ArraySpec((), np.dtype(np.float64))}


def params(value: float) -> dict[str, torch.Tensor]:
    return {
        "params": torch.full((50,), value),
        "buffer.count": torch.full((), value, dtype=torch.float64),
    }


STEP = StepSpec(
    obs={"obs": ArraySpec((2,), FLOAT)},
    action=ArraySpec((), INT),
    state={"h": ArraySpec((3,), FLOAT)},
    extra={"q": ArraySpec((), FLOAT)},
)


WIDTH = 3


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
