"""Experience over the network link of this machine, against a raw gRPC stream:

    python benchmarks/link.py
    python benchmarks/link.py --secs 5 --rounds 5 --only "steps of Pong"

A host and a head, a process each: steps or rollouts of actors wait in memory as in a run, the
exchange carries them, and at the head somebody frees them as fast as they come. The raw stream
carries messages of a fixed size between two processes and looks at none; its best size counts. All
are measured in turn, round by round. MB/s are of what is carried, before compression; with
compression off the link moves the very bytes that a raw stream would. Nothing else should run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from rookery.carriers import wire
from rookery.carriers.grpc import Limits
from rookery.carriers.grpc_head import HeadServer
from rookery.carriers.grpc_host import HostClient
from rookery.carriers.pump import Pump
from rookery.core.hosts import Assignment, HostStatus, Orders, Registration
from rookery.core.ports import End
from rookery.core.records import rollout_spec
from rookery.core.sequence import StepSpec
from rookery.core.spec import Arrays, ArraySpec, zeros
from rookery.envs.make import EnvConfig, make_env
from rookery.transport.eventfd import EventFd
from rookery.transport.queue import QueuePort
from rookery.transport.step_rings import StepsPort

ENVS, ACTORS = 8, 2
TOKEN = "of-this-benchmark-alone"
LIMITS = Limits(message_bytes=256 << 20)
RAW_BYTES = (1 << 18, 1 << 20, 1 << 22)
SKIPPED_SECS = 1.0
COUNT, REAL = np.dtype(np.int64), np.dtype(np.float32)
NEVER = 1 << 62
"""More bytes than any array has."""


# ---- what is carried -----------------------------------------------------------------------------


def atari_frames(game: str, num: int) -> np.ndarray:
    """``[num, ...]`` observations of some random play."""
    env = make_env(EnvConfig(id=f"ALE/{game}-v5"))
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    seen = []
    for _ in range(num):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append(np.asarray(obs))
        if terminated or truncated:
            obs, _ = env.reset()
    return np.stack(seen)


@dataclass(frozen=True)
class Case:
    """Something that actors put."""

    port: Any
    obs: np.ndarray
    """``[n, ...]`` that fill every observation that is carried."""
    steps: int
    """Environment steps in one item."""

    def fill(self, arrays: Arrays) -> int:
        """Observations into all slots; the bytes of one item."""
        shape = self.obs.shape[1:]
        for name, array in arrays.items():
            if name.startswith("slot/obs/"):
                each = array.reshape(-1, *shape)
                each[...] = self.obs[np.arange(len(each)) % len(self.obs)]
        return self.port.traffic()[0] * (ENVS if isinstance(self.port, StepsPort) else 1)


def steps_of(obs: np.ndarray, core: int) -> Case:
    """What `replay` is given, with the state of a recurrent core of that width."""
    spec = StepSpec(
        obs={"obs": ArraySpec(obs.shape[1:], obs.dtype)},
        action=ArraySpec((), COUNT),
        state={name: ArraySpec((core,), REAL) for name in ("h", "c")} if core else {},
        extra={},
    )
    return Case(StepsPort(spec, ACTORS, ENVS, 32, 1, 4), obs, ENVS)


def rollouts_of(obs: np.ndarray) -> Case:
    """What `async` is given."""
    rollout = rollout_spec(
        num_steps=20,
        num_envs=ENVS,
        obs={"obs": ArraySpec(obs.shape[1:], obs.dtype)},
        action=ArraySpec((), COUNT),
        state={},
    )
    return Case(QueuePort(rollout, rollout, ACTORS, ENVS, num_slots=4), obs, 20 * ENVS)


CASES: dict[str, Callable[[], Case]] = {
    "steps of Pong": lambda: steps_of(atari_frames("Pong", 64), 0),
    "steps of Pong, LSTM of 512": lambda: steps_of(atari_frames("Pong", 64), 512),
    "steps of MsPacman": lambda: steps_of(atari_frames("MsPacman", 64), 0),
    "rollouts of Pong": lambda: rollouts_of(atari_frames("Pong", 64)),
    "steps of CartPole": lambda: steps_of(np.zeros((64, 4), np.float32), 0),
}


def end_with_parent() -> None:
    """Whatever becomes of it."""

    def watch() -> None:
        multiprocessing.parent_process().join()  # type: ignore[union-attr]
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# ---- the link ------------------------------------------------------------------------------------


class Desk:
    """Takes one host, and counts what comes from it."""

    def __init__(self, case: Case) -> None:
        self.wakeups = [EventFd.create() for _ in range(ACTORS)]
        self.own = EventFd.create()
        self.arrays = zeros(case.port.layout())
        self.source = case.port.server(End(self.arrays, 0, 0, self.own, self.wakeups))
        self.ends = [
            End(self.arrays, actor, 0, self.wakeups[actor], [self.own]) for actor in range(ACTORS)
        ]
        self.case, self.items = case, 0
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        steps = isinstance(self.case.port, StepsPort)
        if steps:
            self.source.grant_all()
            for wakeup in self.wakeups:
                wakeup.notify()
        while True:
            taken = self._steps() if steps else self._rollouts()
            self.items += taken
            if not taken:
                self.own.wait(1.0)

    def _steps(self) -> int:
        taken = 0
        while (actor := self.source.head()) is not None:
            self.source.done(actor, ahead=True)
            taken += 1
        return taken

    def _rollouts(self) -> int:
        queue, taken = self.source.queue, 0
        while (head := queue.oldest()) is not None:
            actor, number = head
            queue.count(1)[actor] = number + 1
            self.wakeups[actor].notify()
            taken += 1
        return taken

    def register(self, registration: Registration) -> Assignment:
        raise NotImplementedError

    def heartbeat(self, session: str, status: HostStatus) -> Orders:
        return Orders("run")

    def connect(self, session: str) -> Pump:
        pump = Pump(self.wakeups)
        for actor, end in enumerate(self.ends):
            pump.add(actor, self.case.port.server_relay(end), first=False)
        return pump

    def disconnected(self, session: str) -> None:
        """The measurement is over."""

    def leave(self, session: str, reason: str) -> None:
        """It never does."""


def head(name: str, compressed: bool, secs: float, pipe: Any) -> None:
    """Tell the port, and what came in a second."""
    end_with_parent()
    if not compressed:
        wire.MIN_COMPRESSED_BYTES = NEVER
    desk = Desk(CASES[name]())
    server = HeadServer("127.0.0.1:0", token=TOKEN, tls=None, desk=desk, limits=LIMITS)
    pipe.send(server.port)
    pipe.recv()
    time.sleep(SKIPPED_SECS)
    before, begun = desk.items, time.perf_counter()
    time.sleep(secs)
    pipe.send((desk.items - before) / (time.perf_counter() - begun))


def host(name: str, compressed: bool, port: int, pipe: Any) -> None:
    """Put as fast as there is room."""
    end_with_parent()
    if not compressed:
        wire.MIN_COMPRESSED_BYTES = NEVER
    case, link, own = CASES[name](), EventFd.create(), EventFd.create()
    pump, sinks = Pump([link]), []
    for actor in range(ACTORS):
        one = case.port.for_one(actor)
        arrays = zeros(one.layout())
        num_bytes = case.fill(arrays)
        sinks.append(one.client(End(arrays, 0, 0, own, [link])))
        pump.add(actor, one.client_relay(arrays), first=False, wakes=[own])
    client = HostClient(f"127.0.0.1:{port}", token=TOKEN, limits=LIMITS)
    exchange = client.exchange("benchmark", pump)
    pipe.send((num_bytes, case.steps))
    while not exchange.broken.is_set():
        put = False
        for sink in sinks:
            if sink.can_put():
                item = sink.reserve()
                if isinstance(case.port, StepsPort):
                    sink.put(item, np.empty((0, 4)), ended=False, valued=False)
                else:
                    sink.put(item)
                put = True
        if not put:
            sinks[0].wait(0.5)


def linked(name: str, compressed: bool, secs: float) -> tuple[float, float]:
    """MB/s and environment steps/s."""
    spawn = multiprocessing.get_context("spawn")
    (mine, heads), (ours, hosts) = spawn.Pipe(), spawn.Pipe()
    there = spawn.Process(target=head, args=(name, compressed, secs, heads), daemon=True)
    there.start()
    here = spawn.Process(target=host, args=(name, compressed, mine.recv(), hosts), daemon=True)
    here.start()
    num_bytes, steps = ours.recv()
    mine.send("begin")
    items = mine.recv()
    for process in (here, there):
        process.kill()
        process.join()
    return items * num_bytes / 1e6, items * steps


# ---- the raw stream ------------------------------------------------------------------------------


def raw_head(secs: float, pipe: Any) -> None:
    """Receive and forget."""
    end_with_parent()
    got = 0

    def receive(requests: Iterator[bytes], _: Any) -> bytes:
        nonlocal got
        for data in requests:
            got += len(data)
        return b""

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _: Any) -> Any:
            return grpc.stream_unary_rpc_method_handler(receive)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Handlers()], options=LIMITS.options())
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    pipe.recv()
    time.sleep(SKIPPED_SECS)
    before, begun = got, time.perf_counter()
    time.sleep(secs)
    pipe.send((got - before) / (time.perf_counter() - begun))


def raw_host(num_bytes: int, port: int, pipe: Any) -> None:
    """Send the same bytes for ever."""
    end_with_parent()
    data = np.random.default_rng(0).bytes(num_bytes)

    def messages() -> Iterator[bytes]:
        while True:
            yield data

    with grpc.insecure_channel(f"127.0.0.1:{port}", LIMITS.options()) as channel:
        pipe.send("begun")
        channel.stream_unary("/raw/Stream")(messages())


def raw(num_bytes: int, secs: float) -> float:
    """MB/s of messages of this size."""
    spawn = multiprocessing.get_context("spawn")
    (mine, heads), (ours, hosts) = spawn.Pipe(), spawn.Pipe()
    there = spawn.Process(target=raw_head, args=(secs, heads), daemon=True)
    there.start()
    here = spawn.Process(target=raw_host, args=(num_bytes, mine.recv(), hosts), daemon=True)
    here.start()
    ours.recv()
    mine.send("begin")
    rate = mine.recv() / 1e6
    for process in (here, there):
        process.kill()
        process.join()
    return float(rate)


# ---- the table -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--secs", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="parts of the cases' names")
    given = parser.parse_args()
    names = [name for name in CASES if not given.only or any(part in name for part in given.only)]
    raws: list[float] = []
    plain: dict[str, list[float]] = {name: [] for name in names}
    packed: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(given.rounds):
        raws.append(max(raw(size, given.secs) for size in RAW_BYTES))
        for name in names:
            plain[name].append(linked(name, False, given.secs)[0])
            packed[name].append(linked(name, True, given.secs))
            ratios[name].append(plain[name][-1] / raws[-1])
    middle, low, high = statistics.median(raws), min(raws), max(raws)
    print(f"raw gRPC stream: {middle:,.0f} MB/s ({low:,.0f} to {high:,.0f})\n")
    print("| carried | plain MB/s | of the raw stream | compressed MB/s | steps/s |")
    print("|---|---|---|---|---|")
    for name in names:
        ratio = statistics.median(ratios[name])
        spread = f"{min(ratios[name]):.0%} to {max(ratios[name]):.0%}"
        rate, steps = (statistics.median(each) for each in zip(*packed[name], strict=True))
        print(
            f"| {name} | {statistics.median(plain[name]):,.0f} | {ratio:.0%} ({spread}) | "
            f"{rate:,.0f} | {steps:,.0f} |"
        )


if __name__ == "__main__":
    main()
