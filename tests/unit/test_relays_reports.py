"""Reports of updates carried between hosts by relays."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from rookery.carriers.heap import allocate
from rookery.core.ports import End
from rookery.transport.reports import ReportsPort
from tests.relayed import (
    CLIENTS,
    SEEDS,
    Hosts,
    Wire,
    randomly,
)


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
