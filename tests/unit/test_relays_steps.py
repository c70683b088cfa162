"""Steps carried between hosts by relays, on their way into replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rookery.transport.step_rings import StepsPort
from tests.relayed import (
    CLIENTS,
    SEEDS,
    STEP,
    USED,
    WIDTH,
    B,
    Hosts,
    Newcomer,
    randomly,
)


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
