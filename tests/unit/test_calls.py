"""Questions about checkpoints and their answers, through memory that outlasts both ends."""

from __future__ import annotations

import numpy as np

from rookery.carriers.heap import allocate
from rookery.core.ports import End
from rookery.core.spec import ArraySpec
from rookery.transport.calls import NUM_QUESTIONS, CallClient, CallPort, CallServer
from rookery.transport.eventfd import EventFd
from tests.wired import ends

SCORES = {
    "count": ArraySpec((1,), np.dtype(np.int64)),
    "returns": ArraySpec((4,), np.dtype(np.float64)),
}
PORT = CallPort("evaluation", "scores", SCORES)


def both() -> tuple[CallClient, CallServer]:
    (client,), server = ends(PORT)
    return client, server


def answer(server: CallServer, *returns: float) -> None:
    server.answer(count=np.array([len(returns)]), returns=np.array(returns))


def scores(client: CallClient) -> list[tuple[int, list[float]]]:
    return [
        (steps, values["returns"][: values["count"][0]].tolist())
        for steps, values in client.answers()
    ]


def test_questions_are_answered_in_their_order_and_answers_come_once() -> None:
    client, server = both()
    assert server.asked_about() is None
    for steps in (0, 100, 200):
        client.ask(steps)
    assert server.asked_about() == 0, "of the oldest, even if no step was made"
    answer(server, 1.0, 2.0)
    assert scores(client) == [(0, [1.0, 2.0])]
    assert scores(client) == []
    assert server.asked_about() == 100
    answer(server, 3.0)
    assert server.asked_about() == 200
    answer(server)
    assert scores(client) == [(100, [3.0]), (200, [])]
    assert server.asked_about() is None


def test_what_was_answered_is_a_copy() -> None:
    client, server = both()
    client.ask(1)
    answer(server, 5.0)
    ((_, values),) = client.answers()
    for steps in range(2, NUM_QUESTIONS + 2):  # until the place is used again
        client.ask(steps)
        answer(server, 7.0)
    assert values["returns"][0] == 5.0


def test_there_is_room_for_so_many_that_are_not_read() -> None:
    client, server = both()
    for steps in range(NUM_QUESTIONS):
        assert client.can_ask()
        client.ask(steps)
    assert not client.can_ask()
    answer(server, 1.0)
    assert not client.can_ask(), "its answer lies in the place until it is read"
    assert scores(client) == [(0, [1.0])]
    assert client.can_ask()
    client.ask(50)
    for number in range(NUM_QUESTIONS):
        answer(server, float(number))
    assert [steps for steps, _ in scores(client)] == [*range(1, NUM_QUESTIONS), 50]


def test_many_go_round_without_mixing() -> None:
    client, server = both()
    heard, asked = [], 0
    for turn in range(100):
        for _ in range(turn % 3):
            if client.can_ask():
                client.ask(asked)
                asked += 1
        while server.asked_about() is not None and (turn + asked) % 4:
            steps = server.asked_about()
            assert steps is not None
            answer(server, float(steps), -1.0)
            if steps % 5 == 0:
                break
        heard += scores(client)
    while (steps := server.asked_about()) is not None:
        answer(server, float(steps), -1.0)
    heard += scores(client)
    assert heard == [(steps, [float(steps), -1.0]) for steps in range(asked)]


def test_who_takes_the_servers_place_finds_what_waits() -> None:
    memory = allocate(PORT.layout())
    client, first = PORT.client(End(memory)), PORT.server(End(memory))
    for steps in (10, 20, 30):
        client.ask(steps)
    answer(first, 1.0)
    first.answers_in["returns"][1] = np.nan  # it dies while it answers
    second = PORT.server(End(memory, life=1))
    assert second.asked_about() == 20
    answer(second, 2.0)
    answer(second, 3.0)
    assert scores(client) == [(10, [1.0]), (20, [2.0]), (30, [3.0])]


def test_who_takes_the_clients_place_hears_only_what_comes() -> None:
    memory = allocate(PORT.layout())
    first, server = PORT.client(End(memory)), PORT.server(End(memory))
    first.ask(10)
    first.ask(20)
    answer(server, 1.0)
    second = PORT.client(End(memory, life=1))
    assert scores(second) == [], "what was answered before was another's to read"
    second.ask(30)
    answer(server, 2.0)
    answer(server, 3.0)
    assert scores(second) == [(20, [2.0]), (30, [3.0])]


def test_what_is_skipped_stays_unanswered() -> None:
    client, server = both()
    client.ask(10)
    answer(server)
    client.ask(20)
    client.ask(30)
    server.skip()
    assert server.asked_about() is None
    assert server.answered() == [10]
    assert scores(client) == [(10, [])]
    client.ask(40)
    assert server.asked_about() == 40
    answer(server)
    assert server.answered() == [10, 40]
    assert scores(client) == [(40, [])]
    assert client.can_ask()


def test_what_was_answered_is_known_in_every_life_newest_last() -> None:
    memory = allocate(PORT.layout())
    client = PORT.client(End(memory))
    assert PORT.server(End(memory)).answered() == []
    for number in range(2 * NUM_QUESTIONS + 3):
        client.ask(100 * number)
        answer(PORT.server(End(memory, life=number)))
        client.answers()
        newest = range(max(0, number - NUM_QUESTIONS + 1), number + 1)
        found = PORT.server(End(memory, life=number + 1)).answered()
        assert found == [100 * each for each in newest]


def test_a_call_without_values_is_answered_all_the_same() -> None:
    (client,), server = ends(CallPort("snapshots", "", {}))
    client.ask(7)
    server.answer()
    assert client.answers() == [(7, {})]


def test_each_wakes_the_other() -> None:
    memory, here, there = allocate(PORT.layout()), EventFd.create(), EventFd.create()
    client = PORT.client(End(memory, own=here, peers=[there]))
    server = PORT.server(End(memory, own=there, peers=[here]))
    client.ask(1)
    server.wait(600.0)  # returns at once
    answer(server, 1.0)
    here.wait(600.0)
    assert scores(client) == [(1, [1.0])]
    for wakeup in (here, there):
        wakeup.close()


def test_large_answers_have_one_place() -> None:
    port = CallPort("part", "weights", SCORES, places=1)
    assert port.layout()["answer/returns"].shape == (1, 4)
    (client,), server = ends(port)
    for steps in range(1, 4):
        client.ask(steps)
        assert not client.can_ask()
        assert server.asked_about() == steps
        answer(server, float(steps))
        assert scores(client) == [(steps, [float(steps)])]
        assert client.can_ask()
