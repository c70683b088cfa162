"""Hosts and the head over real sockets: who is let in, and what becomes of whoever misbehaves."""

from __future__ import annotations

import contextlib
import gc
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import rookery
from rookery.carriers import grpc_head as link_module
from rookery.carriers import wire_pb2 as pb
from rookery.carriers.grpc import Limits
from rookery.carriers.grpc_head import HeadServer, Refusals
from rookery.carriers.grpc_host import HostClient
from rookery.carriers.pump import Pump
from rookery.carriers.tls import from_files, self_signed
from rookery.carriers.wire import VERSION, pack
from rookery.core.errors import UserError
from rookery.core.hosts import HostStatus, Orders, Refused, Unreachable
from rookery.core.spec import Arrays, ArraySpec
from tests.hostile import EXCHANGE, SERVICES, HalfOpen, Hostile, half_open, message
from tests.linked import ASSIGNMENT, REGISTRATION, SECS, TOKEN, Head, Office, cable, eventually
from tests.unit.test_pump import Numbers
from tests.unit.test_tls import DNS, make_files

CODES = grpc.StatusCode
CONTROL = "/rookery.wire.Control"
METADATA = (("authorization", f"Bearer {TOKEN}"),)
STATUS = HostStatus(actors_alive=3, restarts=1, message="acting", error="")
QUICK = Limits(ping_secs=0.3, ping_timeout_secs=0.3)


@pytest.fixture
def head() -> Iterator[Head]:
    with Head() as found:
        yield found


@contextlib.contextmanager
def raw(head: Head, **options: Any) -> Iterator[Any]:
    """A channel on which anything can be sent."""
    given = [("grpc.use_local_subchannel_pool", 1), *options.items()]
    with grpc.insecure_channel(head.address, given) as channel:
        yield channel


def refusal(act: Callable[[], Any]) -> tuple[Any, str]:
    """The status with which a call ends."""
    with pytest.raises(grpc.RpcError) as caught:
        act()
    error: Any = caught.value
    return error.code(), error.details()


def call(channel: Any, name: str, data: bytes, **given: Any) -> Any:
    given = {"timeout": SECS, "metadata": METADATA} | given
    return channel.unary_unary(f"{CONTROL}/{name}")(data, **given)


def open_exchange(channel: Any, session: str, messages: Any, **given: Any) -> Any:
    given = {"metadata": (*METADATA, ("rookery-session", session))} | given
    return channel.stream_stream(EXCHANGE)(messages, **given)


def endless(first: list[bytes]) -> tuple[Iterator[bytes], threading.Event]:
    """Messages of a peer that then keeps silent until the event is set."""
    over = threading.Event()

    def messages() -> Iterator[bytes]:
        yield from first
        over.wait(SECS)

    return messages(), over


def pump_of(*relays: Any) -> Pump:
    pump = Pump()
    for number, relay in enumerate(relays):
        pump.add(number, relay, first=False)
    return pump


def number_frame(value: int, relay: int = 0) -> bytes:
    return pack([(relay, {"n": np.array(value)})])


def lives(head: Head) -> None:
    """It still serves others."""
    head.office.pumps["other"] = lambda: pump_of(Numbers())
    client = head.client()
    assert client.heartbeat("other", STATUS) == head.office.orders
    relay = Numbers(1, 2)
    exchange = client.exchange("other", pump_of(relay))
    exchange.close(SECS)
    assert exchange.error is None
    assert relay.pending == []


def answers(client: HostClient) -> bool:
    """Whether the head answers a heartbeat; one that is not there, or not yet, does not."""
    try:
        return client.heartbeat("s1", STATUS) == Orders()
    except Unreachable:
        return False


# ---- what it is for ------------------------------------------------------------------------------


@pytest.mark.parametrize("secured", [False, True])
def test_a_host_registers_reports_and_leaves(secured: bool, tmp_path: Path) -> None:
    with Head(self_signed(tmp_path) if secured else None) as head:
        client, office = head.client(), head.office
        assert client.register(REGISTRATION) == ASSIGNMENT
        assert office.registered == [replace(REGISTRATION, address="127.0.0.1")]
        office.pumps["s1"] = Pump
        for state in ("run", "wait", "stop", "over"):
            office.orders = Orders(state, reason=f"because of {state}")  # type: ignore[arg-type]
            assert client.heartbeat("s1", STATUS) == office.orders
        assert office.statuses == [("s1", STATUS)] * 4
        client.leave("s1", "bye")
        assert office.left == [("s1", "bye")]
        lives(head)


def test_frames_go_both_ways_until_the_host_ends_it(head: Head) -> None:
    here, there = Numbers(1, 2, 3), Numbers(*range(100))
    head.office.pumps["s1"] = lambda: pump_of(here)
    exchange = head.client().exchange("s1", pump_of(there))
    eventually(lambda: there.told == [1, 2, 3])
    exchange.close(SECS)
    assert here.told == list(range(100)), "what was pending was sent"
    assert exchange.error is None
    eventually(lambda: head.office.gone == ["s1"])


def test_what_the_head_keeps_is_there_when_the_exchange_begins(head: Head) -> None:
    """An actor that begins before it has the state of the one before would begin anew."""
    there = Numbers()
    for _ in range(20):
        pump = Pump()
        pump.add(0, Numbers(7), first=True)
        head.office.pumps["s1"] = lambda pump=pump: pump
        there.told.clear()
        exchange = head.client().exchange("s1", pump_of(there))
        assert there.told == [7]
        exchange.close(SECS)
        eventually(lambda: not head.server._served)


def test_the_head_ends_an_exchange_and_says_why(head: Head) -> None:
    pump = pump_of(Numbers())
    head.office.pumps["s1"] = lambda: pump
    exchange = head.client().exchange("s1", pump_of(Numbers()))
    pump.close("no heartbeat for 12 s")
    assert exchange.broken.wait(SECS)
    assert exchange.reason == f"the head at {head.address}: no heartbeat for 12 s"
    assert isinstance(exchange.error, Refused)
    assert exchange.error.again
    assert exchange.pump.closed
    eventually(lambda: head.office.gone == ["s1"])


def test_a_head_that_stops_ends_all(head: Head) -> None:
    head.office.pumps["s1"] = lambda: pump_of(Numbers())
    client = head.client()
    exchange = client.exchange("s1", pump_of(Numbers()))
    begun = time.monotonic()
    head.server.stop(5.0)
    assert time.monotonic() - begun < 5.0, "nobody waits for the grace period"
    assert exchange.broken.wait(SECS)
    assert "the head has stopped" in exchange.reason
    with pytest.raises(Unreachable, match=r"does not answer.*refused"):
        client.heartbeat("s1", STATUS)


# ---- who is let in -------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["another-token-of-a-peer", TOKEN[:-1], TOKEN + "x"])
def test_another_token_is_refused_counted_and_told(head: Head, token: str) -> None:
    client = head.client(token=token)
    acts: list[Callable[[], Any]] = [
        lambda: client.register(REGISTRATION),
        lambda: client.heartbeat("s1", STATUS),
        lambda: client.leave("s1", ""),
        lambda: client.exchange("s1", pump_of(Numbers())),
    ]
    for act in acts:
        with pytest.raises(Refused, match="refuses the token") as caught:
            act()
        assert not caught.value.again
    office = head.office
    assert [*office.registered, *office.statuses, *office.left, *office.gone] == []
    assert head.server.refusals.total == len(acts)
    assert head.said == ["refused 1 attempt from 127.0.0.1: no token, or another one"]
    head.server.stop(0.1)
    assert head.said[1:] == ["refused 3 attempts from 127.0.0.1: no token, or another one"]
    assert TOKEN[:-1] not in "".join(head.said)
    assert token not in "".join(head.said)


@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", TOKEN),), (("authorization", "Bearer "),), (("token", TOKEN),)],
)
def test_without_the_token_nobody_learns_what_is_there(head: Head, metadata: Any) -> None:
    with raw(head) as channel:
        names = [f"{CONTROL}/Register", EXCHANGE, "/no.such/Call"]
        for name in names:
            stub = channel.stream_stream(name)
            code, text = refusal(lambda: list(stub(iter([b"x" * 1000]), metadata=metadata)))  # noqa: B023
            assert (code, text) == (CODES.UNAUTHENTICATED, "no token, or another one")
        assert head.server.refusals.total == len(names)


def test_a_flood_of_attempts_is_a_line_each_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, said = 1000.0, list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    refusals = Refusals(said.append)
    for _ in range(12_800):
        refusals.count("10.0.0.3")
        moment += 1 / 128
    assert len(said) == 10
    assert said[1] == "refused 1280 attempts from 10.0.0.3: no token, or another one"
    for number in range(5000):
        refusals.count(f"fe80::{number}")
    assert len(said) < 10 + 2 * Refusals.MOST_PEERS, "nor with many addresses"
    assert len(refusals._untold) <= Refusals.MOST_PEERS + 1
    refusals.tell_rest()
    assert sum(int(line.split()[1]) for line in said) == refusals.total == 17_800


def test_addresses_beyond_this_machine_need_tls(tmp_path: Path) -> None:
    given: dict[str, Any] = {"token": TOKEN, "desk": Office()}
    with pytest.raises(UserError, match=r"0\.0\.0\.0:0 can be reached .* so it needs TLS"):
        HeadServer("0.0.0.0:0", tls=None, **given)
    with pytest.raises(UserError, match=r"10\.0\.0\.1:4700 is another machine: give the finger"):
        HostClient("10.0.0.1:4700", token=TOKEN)
    tls = self_signed(tmp_path)
    with Head(tls, address="0.0.0.0:0") as head:
        lives(head)


def test_a_port_in_use_is_told(head: Head) -> None:
    with pytest.raises(UserError, match=r"cannot listen at .*the port is in use"):
        HeadServer(head.address, token=TOKEN, tls=None, desk=Office())


def test_another_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = self_signed(tmp_path / "other")
    with Head(self_signed(tmp_path)) as head:
        with pytest.raises(Refused, match="shows another certificate"):
            head.client(fingerprint=other.fingerprint)
        (tmp_path / "other.pem").write_bytes(other.certificate)
        client = head.client(fingerprint=None, authority=tmp_path / "other.pem")
        with pytest.raises(Unreachable, match="does not answer"):
            client.register(REGISTRATION)
        with pytest.raises(Unreachable, match="does not answer"):
            head.client(fingerprint=None).register(REGISTRATION)  # not by TLS
        assert head.office.registered == []


def test_certificates_of_files_are_known_by_their_authority_or_fingerprint(tmp_path: Path) -> None:
    files = make_files(tmp_path, "given", [DNS("localhost")])
    with Head(from_files(*files)) as head:
        assert head.client().register(REGISTRATION) == ASSIGNMENT
        address = f"localhost:{head.server.port}"
        client = head.client(address=address, fingerprint=None, authority=files[0])
        assert client.register(REGISTRATION) == ASSIGNMENT
        client = head.client(fingerprint=None, authority=files[0])
        with pytest.raises(Unreachable):  # it is for localhost, not for 127.0.0.1
            client.register(REGISTRATION)


# ---- versions and messages -----------------------------------------------------------------------


def test_another_rookery_is_told_both_versions(head: Head) -> None:
    other = replace(REGISTRATION, rookery_version="9.9.9")
    with pytest.raises(Refused) as caught:
        head.client().register(other)
    text = str(caught.value)
    assert f"node-b has Rookery 9.9.9 and the head has {rookery.__version__}" in text
    assert "\n" not in text
    assert head.office.registered == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Register", pb.RegisterRequest),
        ("Heartbeat", pb.HeartbeatRequest),
        ("Leave", pb.LeaveRequest),
    ],
)
def test_another_version_of_the_protocol_is_told_both(head: Head, name: str, kind: Any) -> None:
    with raw(head) as channel:
        code, text = refusal(lambda: call(channel, name, kind(version=77).SerializeToString()))
    assert code is CODES.FAILED_PRECONDITION
    assert f"version 77 of the network link, and here is {VERSION}" in text


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (b"\xff" * 9, CODES.INVALID_ARGUMENT, "9 bytes, where 4294967299 were announced"),
        (
            message(pb.Packet(version=VERSION + 1)),
            CODES.FAILED_PRECONDITION,
            f"version {VERSION + 1}",
        ),
        (number_frame(1, relay=9), CODES.INVALID_ARGUMENT, "relay 9, which is not here"),
        (number_frame(-1), CODES.INVALID_ARGUMENT, "cannot take a frame: RuntimeError: no room"),
        (pack([(0, {"m": np.array(1)})]), CODES.INVALID_ARGUMENT, "an array 'm' of relay 0"),
    ],
)
def test_what_is_wrong_with_a_frame_ends_the_exchange_with_a_status(
    head: Head, message: bytes, code: Any, text: str
) -> None:
    here = Numbers()
    head.office.pumps["s1"] = lambda: pump_of(here)
    with raw(head) as channel:
        messages, over = endless([number_frame(5), message, number_frame(6)])
        found, details = refusal(lambda: list(open_exchange(channel, "s1", messages)))
        over.set()
    assert found is code
    assert text in details
    assert here.told == [5]
    eventually(lambda: head.office.gone == ["s1"])
    lives(head)


def test_control_calls_have_a_deadline_and_a_message(head: Head) -> None:
    """Who calls and sends nothing would hold a thread for ever."""
    good = pb.LeaveRequest(version=VERSION, session="s1").SerializeToString()
    with raw(head) as channel:
        for secs in (None, 3600.0):
            code, text = refusal(lambda: call(channel, "Leave", good, timeout=secs))  # noqa: B023
            assert (code, "without a deadline" in text) == (CODES.INVALID_ARGUMENT, True)
        leave = channel.stream_unary(f"{CONTROL}/Leave")
        code, text = refusal(lambda: leave(iter(()), timeout=SECS, metadata=METADATA))
        assert (code, "without a message" in text) == (CODES.INVALID_ARGUMENT, True)
        silent, over = endless([])
        code, _ = refusal(lambda: leave(silent, timeout=0.2, metadata=METADATA))
        over.set()
        assert code is CODES.DEADLINE_EXCEEDED
    lives(head)


def test_control_messages_are_small(head: Head) -> None:
    long = pb.LeaveRequest(version=VERSION, reason="x" * (1 << 17)).SerializeToString()
    with raw(head) as channel:
        code, text = refusal(lambda: call(channel, "Leave", long))
    assert code is CODES.INVALID_ARGUMENT
    assert "more than 65536" in text


def test_words_of_a_peer_do_nothing_to_a_terminal(head: Head) -> None:
    head.office.pumps["s1"] = Pump
    head.client().heartbeat("s1", replace(STATUS, message="\x1b[2J" + "x" * 10_000, error="a\nb"))
    ((_, status),) = head.office.statuses
    assert status.message == " [2J" + "x" * 496
    assert status.error == "a b"


def test_what_the_desk_refuses_is_one_line_at_the_host(head: Head) -> None:
    client = head.client()
    with pytest.raises(Refused, match=r"refuses: there are places for 100 actors$") as caught:
        client.register(replace(REGISTRATION, num_actors=101))
    assert not caught.value.again
    for act in (
        lambda: client.heartbeat("none", STATUS),
        lambda: client.exchange("none", pump_of(Numbers())),
    ):
        with pytest.raises(Refused, match=r": this session is over$") as caught:
            act()
        assert caught.value.again
    assert head.office.gone == [], "it was never connected"


def test_an_error_of_the_desk_is_a_status(head: Head, caplog: pytest.LogCaptureFixture) -> None:
    head.office.pumps["s1"] = lambda: 1 // 0  # type: ignore[assignment, return-value]
    with pytest.raises(Unreachable, match="the head failed: ZeroDivisionError"):
        head.client().exchange("s1", pump_of(Numbers()))
    assert "the head failed at a call" in caplog.text, "with its traceback"
    lives(head)


# ---- limits --------------------------------------------------------------------------------------


def test_a_session_has_one_exchange(head: Head) -> None:
    head.office.pumps["s1"] = lambda: pump_of(Numbers())
    client = head.client()
    first = client.exchange("s1", pump_of(Numbers()))
    with pytest.raises(Refused, match="session s1 has an exchange"):
        client.exchange("s1", pump_of(Numbers()))
    first.close(SECS)
    eventually(lambda: not head.server._served)
    client.exchange("s1", pump_of(Numbers())).close(SECS)


def test_exchanges_that_have_ended_take_no_room_on_a_connection(head: Head) -> None:
    """Though nobody collects garbage."""
    head.office.pumps["s1"] = lambda: pump_of(Numbers())
    gc.disable()
    try:
        with raw(head) as channel:
            for _ in range(link_module.CALLS_A_CONNECTION + 20):
                assert list(open_exchange(channel, "s1", iter([pack([])]), timeout=SECS))
                eventually(lambda: not head.server._served)
    finally:
        gc.enable()


def test_hosts_are_bounded_and_control_calls_go_on() -> None:
    with Head(limits=Limits(hosts=2, control_calls=2)) as head:
        client = head.client()
        for number in range(3):
            head.office.pumps[f"s{number}"] = lambda: pump_of(Numbers())
        running = [client.exchange(f"s{number}", pump_of(Numbers())) for number in range(2)]
        with pytest.raises(Refused, match="the head has 2 hosts") as caught:
            client.exchange("s2", pump_of(Numbers()))
        assert caught.value.again
        assert client.heartbeat("s0", STATUS) == Orders()
        for exchange in running:
            assert not exchange.broken.is_set()
            exchange.close(SECS)


def test_calls_at_once_are_bounded() -> None:
    with Head(limits=Limits(hosts=1, control_calls=2)) as head, raw(head) as channel:
        head.office.pumps["s1"] = Pump
        client = head.client()
        silent = [endless([]) for _ in range(3)]
        leave = channel.stream_unary(f"{CONTROL}/Leave")
        calls = [leave.future(each, timeout=SECS, metadata=METADATA) for each, _ in silent]

        def busy() -> bool:
            """Which says nothing of this host: it may be the doing of whoever has no token."""
            try:
                client.heartbeat("s1", STATUS)
            except Unreachable as error:
                return "has too much to do" in str(error)
            return False

        eventually(busy)
        for each, (_, over) in zip(calls, silent, strict=True):
            over.set()
            each.cancel()
        eventually(lambda: not busy())


def test_a_message_that_is_too_large_is_refused() -> None:
    specs = {"n": ArraySpec((1 << 18,), np.dtype(np.uint8))}

    class Large(Numbers):
        sends = receives = specs

        def accept(self, frame: Arrays) -> None:
            self.told.append(len(frame["n"]))

    here = Large()
    noise = np.random.default_rng(0).integers(0, 256, 1 << 18, np.uint8)
    with Head(limits=Limits(message_bytes=100_000)) as head:
        head.office.pumps["s1"] = lambda: pump_of(here)
        with raw(head, **{"grpc.max_send_message_length": -1}) as channel:
            messages, over = endless([pack([(0, {"n": noise})])])
            code, text = refusal(lambda: list(open_exchange(channel, "s1", messages)))
            over.set()
        assert (code, "larger than max" in text) == (CODES.RESOURCE_EXHAUSTED, True)
        assert here.told == []
        eventually(lambda: head.office.gone == ["s1"])
        lives(head)


def test_connections_are_bounded() -> None:
    with Head(limits=Limits(connections=4)) as head, contextlib.ExitStack() as closing:
        head.office.pumps["s1"] = Pump
        clients = [head.client(timeout_secs=1.0) for _ in range(8)]
        for client in clients:
            closing.callback(client.close)
        assert sum(answers(client) for client in clients) == 4
        closing.close()
        eventually(lambda: answers(head.client(timeout_secs=1.0)))


def test_connections_that_say_nothing_are_closed() -> None:
    with (
        Head(limits=Limits(handshake_secs=0.3)) as head,
        socket.create_connection(("127.0.0.1", head.server.port)) as silent,
    ):
        silent.settimeout(SECS)
        while silent.recv(1 << 16):  # the server's settings
            pass
        lives(head)


HALVES = tuple(half_open(TOKEN))
IMPATIENT = replace(QUICK, handshake_secs=0.3, idle_secs=0.5)


@pytest.mark.parametrize("kind", HALVES)
def test_a_peer_that_falls_silent_is_cut_off(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Wherever it stopped."""
    with Head(limits=IMPATIENT) as head:
        head.office.pumps["s1"] = lambda: pump_of(Numbers())
        half = HalfOpen(("127.0.0.1", head.server.port), half_open(TOKEN)[kind])
        assert half.closed.wait(SECS), kind
        half.close()
        eventually(lambda: not head.server._served)
        lives(head)
    assert "failed" not in caplog.text, "nothing of the head's has"


def test_a_peer_that_only_answers_whether_it_lives_is_cut_off() -> None:
    """It needs no token, and would hold a connection for ever."""
    with Head(limits=IMPATIENT) as head:
        sent = half_open(TOKEN)["settings"]
        half = HalfOpen(("127.0.0.1", head.server.port), sent, answers=True)
        assert half.closed.wait(SECS)
        half.close()
        head.office.pumps["s1"] = lambda: pump_of(Numbers())
        exchange = head.client().exchange("s1", pump_of(Numbers()))
        time.sleep(2.0)
        assert not exchange.broken.is_set(), "who exchanges frames is not idle, though it is silent"
        exchange.close(SECS)


def test_as_many_half_open_connections_as_there_may_be_harm_nobody() -> None:
    limits = replace(IMPATIENT, connections=32, ping_secs=2.0, ping_timeout_secs=2.0)
    with Head(limits=limits) as head:
        here, there = Numbers(), Numbers()
        head.office.pumps["s1"] = lambda: pump_of(here)
        pump = pump_of(there)
        client = head.client()
        exchange = client.exchange("s1", pump)
        kinds = list(half_open(TOKEN).values())
        before = resident_bytes()
        for turn in range(5):
            address = ("127.0.0.1", head.server.port)
            silent = [
                HalfOpen(address, kinds[n % len(kinds)], answers=n % 3 == 0) for n in range(64)
            ]
            there.pending.append(turn)
            eventually(lambda: answers(client))
            assert not exchange.broken.is_set(), "who is there is served"
            for half in silent:
                assert half.closed.wait(SECS)
                half.close()
        eventually(lambda: answers(head.client(timeout_secs=1.0)))
        exchange.close(SECS)
        assert here.told == list(range(5))
        assert exchange.error is None
        assert resident_bytes() - before < 32 << 20


# ---- links that break ----------------------------------------------------------------------------


def test_a_cut_link_is_noticed_on_both_sides() -> None:
    with Head(limits=QUICK) as head, cable(head.server.port) as wire:
        head.office.pumps["s1"] = lambda: pump_of(Numbers())
        client = head.client(address=f"127.0.0.1:{wire.port}", timeout_secs=2.0)
        exchange = client.exchange("s1", pump_of(Numbers()))
        time.sleep(2.0)
        assert not exchange.broken.is_set(), "it is silent, and lives"
        assert head.office.gone == []
        wire.cut.set()
        begun = time.monotonic()
        assert exchange.broken.wait(SECS)
        assert isinstance(exchange.error, Unreachable)
        eventually(lambda: head.office.gone == ["s1"])
        assert time.monotonic() - begun < 10.0
        with pytest.raises(Unreachable):
            client.heartbeat("s1", STATUS)
        wire.cut.clear()
        eventually(lambda: answers(head.client(limits=QUICK)))


def test_a_peer_that_takes_nothing_is_cut_off_when_its_exchange_is_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds a thread of the head that waits until it can send."""
    monkeypatch.setattr(link_module, "CUT_SECS", 0.5)
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8)

    class Full(Numbers):
        given = 0

        def next(self) -> Arrays | None:
            Full.given += 1
            return {"n": noise} if Full.given < 1000 else None

    pump = pump_of(Full())
    with Head() as head, raw(head, **{"grpc.max_receive_message_length": -1}) as channel:
        head.office.pumps["s1"] = lambda: pump
        messages, over = endless([])
        stream = open_exchange(channel, "s1", messages)
        next(stream)
        eventually(lambda: Full.given > 0)
        time.sleep(0.5)
        assert Full.given < 200, "what is not taken is not read either"
        pump.close("no heartbeat")
        eventually(lambda: head.office.gone == ["s1"])
        eventually(lambda: not head.server._served)
        over.set()
        lives(head)


def test_a_head_that_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = HostClient(f"127.0.0.1:{silent.getsockname()[1]}", token=TOKEN, timeout_secs=0.3)
        with pytest.raises(Unreachable, match="does not answer"):
            client.heartbeat("s1", STATUS)
        with pytest.raises(Unreachable, match=r"did not begin the exchange in 0\.3 s"):
            client.exchange("s1", pump_of(Numbers()))
        client.close()


# ---- whatever comes ------------------------------------------------------------------------------


def fuzz(head: Head, service: str, num: int, seed: int) -> Counter[Any]:
    """Messages that are wrong to one service; how often they ended with which status."""
    head.office.pumps["s1"] = lambda: pump_of(Numbers(), Numbers())
    hostile = Hostile(head.address, TOKEN, seed)
    hostile.sessions = ["s1", "s1", "s1", "one-that-was-left"]
    hostile.frames = [(number % 2, {"n": np.array(number)}) for number in range(20)]
    seen: Counter[Any] = Counter()
    with contextlib.closing(hostile):
        for _ in range(num):
            seen[hostile.turn(service)] += 1
            if service == "Exchange":
                eventually(lambda: not head.server._served)
    return seen


def unharmed(head: Head, service: str, num: int) -> None:
    """``num`` such messages: each ends with a status, the head lives and does not grow."""
    fuzz(head, service, min(num // 4, 2000), 0)
    forget(head)
    before = resident_bytes()
    seen = fuzz(head, service, num, 1)
    forget(head)
    grown = resident_bytes() - before
    expected = {CODES.OK, CODES.INVALID_ARGUMENT, CODES.FAILED_PRECONDITION, CODES.ABORTED}
    assert set(seen) <= expected | {CODES.RESOURCE_EXHAUSTED}, seen
    assert seen[CODES.INVALID_ARGUMENT] > num / 10
    assert seen[CODES.FAILED_PRECONDITION] > num / 100, "other versions"
    assert grown < 32 << 20, f"{grown} bytes more"
    assert head.server.refusals.total == 0
    lives(head)


def forget(head: Head) -> None:
    """What this desk, and no other, writes down."""
    for written in (head.office.registered, head.office.statuses, head.office.gone):
        written.clear()  # type: ignore[attr-defined]
    head.office.left.clear()
    gc.collect()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.parametrize("service", SERVICES)
def test_messages_that_are_wrong_end_with_a_status(head: Head, service: str) -> None:
    unharmed(head, service, 5000)


@pytest.mark.long
@pytest.mark.parametrize("service", SERVICES)
def test_very_many_messages_that_are_wrong_end_with_a_status(head: Head, service: str) -> None:
    unharmed(head, service, 100_000)


def test_bytes_that_are_no_call_harm_nobody(head: Head) -> None:
    """Sent to the bare socket."""
    rng = np.random.default_rng(0)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
    for number in range(300):
        with socket.create_connection(("127.0.0.1", head.server.port), SECS) as peer:
            noise = rng.integers(0, 256, int(rng.integers(1, 3000)), np.uint8).tobytes()
            with contextlib.suppress(OSError):
                peer.sendall(preface * (number % 2) + noise)
    lives(head)
