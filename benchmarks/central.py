"""Central inference against a bare loop, against actors with their own network, and on Mario.

::

    python -m benchmarks.central requests     # requests/s and latency, and those of a bare loop
    python -m benchmarks.central scaling      # an environment that sleeps 20 ms, 1 to 32 actors
    python -m benchmarks.central pong         # replay, async and central on Pong
    python -m benchmarks.central mario        # four actors, one process, and a bare loop

In each part everything is measured in turn, round by round. Nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks.many_hosts import settled
from rookery.carriers.shared_memory import SharedArena
from rookery.core.tensors import as_tensor
from rookery.engines.assemble import Wired, layouts
from rookery.engines.loop import build_member
from rookery.programs.plan import Plan
from rookery.recipes.settings import settings_from_flags
from rookery.runs.metrics import read_metrics
from rookery.transport.eventfd import EventFd

HERE = Path(__file__).resolve().parents[1]
COMMON = (
    "--eval.episodes", "0", "--stop-at", "none", "--log-every", "100", "--save-every", "100000000",
    "--metrics.sinks", "jsonl", "--steps", "100000000", "--plain",
)  # fmt: skip
WARM_UP_SECS = 1.0


# ---- requests ------------------------------------------------------------------------------------


class Frames(gym.Env[Any, Any]):
    """Shows the same picture for ever, at no cost."""

    action_space = gym.spaces.Discrete(4)

    def __init__(self, pixels: int = 0) -> None:
        shape = (4, pixels, pixels) if pixels else (4,)
        kind, most = (np.uint8, 255) if pixels else (np.float32, 1)
        self.observation_space = gym.spaces.Box(0, most, shape, kind)
        self.seen = np.zeros(shape, kind)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        super().reset(**given)
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.seen, 0.0, False, False, {}


def config_of(pixels: int, actors: int) -> Any:
    """A2C with long rollouts: whoever learns only gives memory back."""
    flags = {
        "formation": "central", "engine": "local", "actors": str(actors), "envs": str(actors),
        "algo": "a2c", "a2c.rollout_steps": "16", "env.kwargs.pixels": str(pixels),
        "env.backend": "serial", "policy.torso": "conv2d" if pixels else "mlp",
        "policy.hidden": "[512]" if pixels else "[64,64]", "policy.activation": "relu",
    }  # fmt: skip
    return settings_from_flags("benchmarks.central:Frames", flags)


def in_children(work: Callable[[int], None], actors: int) -> list[int]:
    """Fork a process for each."""
    children = []
    for actor in range(actors):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            try:
                torch.set_num_threads(1)
                work(actor)
            finally:
                os._exit(0)
        children.append(pid)
    return children


def ended(children: list[int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def by_inference(pixels: int, actors: int, secs: float) -> tuple[float, float]:
    """Requests/s, and the median latency in ms, of the role in a process of its own."""
    plan = Plan.of(config_of(pixels, actors))
    program = plan.program()
    arena = SharedArena.create(layouts(program))
    wakeups = {
        node.name: [EventFd.create() for _ in range(node.replicas)] for node in program.nodes
    }
    wired = Wired(program, arena.arrays, wakeups)

    def member(name: str, replica: int = 0) -> Any:
        return build_member(wired, plan, program.node(name), replica, run=Path("/nowhere")).role

    def act(actor: int) -> None:
        role = member("actor", actor)
        while True:
            if role.ready():
                role.step()
            else:
                role.wait(0.2)

    ports = wired.ports_of("learner", 0)
    source, cell = ports.serve("experience"), ports.serve("params")
    inference = member("inference")
    cell.publish(0, inference.weights.flat.tensors())
    inference.start()
    children = in_children(act, actors)
    try:
        begun, counted, from_then = time.perf_counter(), 0, 0.0
        while not from_then or time.perf_counter() - from_then < secs:
            if inference.ready():
                inference.step()
            else:
                inference.wait(0.2)
            if source.can_sample():
                source.release()
            if not from_then and time.perf_counter() - begun > WARM_UP_SECS:
                from_then, counted = time.perf_counter(), answers(wired)
        rate = (answers(wired) - counted) / (time.perf_counter() - from_then)
        return rate, inference.metrics()["inference/latency_ms_p50"]
    finally:
        ended(children)
        arena.close()


def answers(wired: Wired) -> int:
    """So many since it began."""
    edge = next(edge for edge in wired.program.edges if edge.port.name == "actions")
    return int(wired.memory(edge)["answered"][:, :, 0].sum())


def by_hand(pixels: int, actors: int, secs: float) -> tuple[float, float]:
    """The same of a bare loop that batches whatever waits."""
    plan = Plan.of(config_of(pixels, actors))
    spec = plan.obs["obs"]

    def shared(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(mmap.mmap(-1, count), dtype).reshape(shape)

    obs, asks = shared((actors, *spec.shape), spec.dtype), shared((actors,), np.uint8)
    action, since = shared((actors,), np.int64), shared((actors,), np.int64)
    own, answered = EventFd.create(), [EventFd.create() for _ in range(actors)]

    def act(actor: int) -> None:
        env = Frames(pixels)
        obs[actor] = env.reset()[0]
        while True:
            since[actor] = time.monotonic_ns()
            asks[actor] = 1
            own.notify()
            while asks[actor]:
                answered[actor].wait(0.2)
            obs[actor] = env.step(action[actor])[0]

    policy, rng = plan.policy(), np.random.default_rng(0)
    children, took = in_children(act, actors), []
    try:
        begun, counted, made, from_then = time.perf_counter(), 0, 0, 0.0
        while not from_then or time.perf_counter() - from_then < secs:
            waiting = np.flatnonzero(asks.copy())
            if not len(waiting):
                own.wait(0.2)
                continue
            with torch.inference_mode():
                seen = {"obs": as_tensor(obs[waiting], policy.device)}
                nothing = torch.zeros(len(waiting), dtype=torch.bool)
                out, _ = policy.step(seen, {}, nothing, rng)
            action[waiting] = out.action.numpy()
            moment = time.monotonic_ns()
            took += (moment - since[waiting]).tolist()
            asks[waiting] = 0
            for actor in waiting:
                answered[actor].notify()
            made += len(waiting)
            if not from_then and time.perf_counter() - begun > WARM_UP_SECS:
                from_then, counted = time.perf_counter(), made
        rate = (made - counted) / (time.perf_counter() - from_then)
        return rate, statistics.median(took[-2048:]) / 1e6
    finally:
        ended(children)


def requests(rounds: int, secs: float) -> None:
    """The table of requests."""
    print("| network, actors | requests/s | bare loop | ratio | latency | bare loop |")
    print("|---|---|---|---|---|---|")
    for pixels, name in ((0, "dense 64, 64"), (84, "Nature CNN")):
        for actors in (1, 4, 16):
            ours, theirs = [], []
            for _ in range(rounds):
                theirs.append(by_hand(pixels, actors, secs))
                ours.append(by_inference(pixels, actors, secs))
            ratio = [mine[0] / bare[0] for mine, bare in zip(ours, theirs, strict=True)]
            (rate, late), (bare_rate, bare_late) = (
                tuple(statistics.median(column) for column in zip(*each, strict=True))
                for each in (ours, theirs)
            )
            print(
                f"| {name}, {actors} | {rate:,.0f} | {bare_rate:,.0f} | "
                f"{statistics.median(ratio):.2f} ({min(ratio):.2f} to {max(ratio):.2f}) | "
                f"{late:.2f} ms | {bare_late:.2f} ms |",
                flush=True,
            )


# ---- whole runs ----------------------------------------------------------------------------------

REPLAY = (
    "--algo", "apex", "--apex.batch_size", "32", "--apex.learning_starts", "200",
    "--apex.capacity_steps", "20000", "--apex.steps_per_update", "32",
)  # fmt: skip
QUEUE = ("--algo", "impala", "--impala.rollout_steps", "20")
SLEEPING = ("benchmarks.sleeping_env:make_env", "--policy.hidden", "[16]", "--engine", "local")
FORMATIONS = {
    "replay": ("--formation", "replay", *REPLAY),
    "central, replay": ("--formation", "central", *REPLAY),
    "async": ("--formation", "async", *QUEUE),
    "central, queue": ("--formation", "central", *QUEUE),
}


def rate_of(words: tuple[str, ...], actors: int, secs: float) -> float:
    """Steps/s of a run."""
    with tempfile.TemporaryDirectory() as root:
        run, log = Path(root) / "run", Path(root) / "log"
        command = [sys.executable, "-m", "rookery", "train", *words, *COMMON, "--run", str(run)]
        with log.open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, cwd=root)
        try:
            return settled(run, actors, secs, log)
        finally:
            process.terminate()
            process.wait(60.0)


def scaling(rounds: int, secs: float) -> None:
    """Steps/s of 1 to 32 actors with one sleeping environment each."""
    print("| formation | actors | steps/s | of linear |\n|---|---|---|---|")
    for name, flags in FORMATIONS.items():
        alone = 0.0
        for actors in (1, 2, 4, 8, 16, 32):
            words = (*SLEEPING, *flags, "--actors", str(actors), "--envs", str(actors))
            rate = statistics.median(rate_of(words, actors, secs) for _ in range(rounds))
            alone = alone or rate
            print(f"| {name} | {actors} | {rate:,.0f} | {rate / alone / actors:.0%} |", flush=True)


PONG = {
    "replay": ("apex-pong", "--formation", "replay"),
    "central, replay": ("apex-pong", "--formation", "central"),
    "async": ("pong", "--algo", "impala", "--formation", "async"),
    "central, queue": ("pong", "--algo", "impala", "--formation", "central"),
}


def pong(rounds: int, secs: float) -> None:
    """Steps/s of each formation on Pong, two actors with eight games each."""
    rates: dict[str, list[float]] = {name: [] for name in PONG}
    more = ("--engine", "local", "--actors", "2", "--envs", "16")
    for _ in range(rounds):
        for name, words in PONG.items():
            starts = ("--apex.learning_starts", "1000") if "apex-pong" in words else ()
            rates[name].append(rate_of((*words, *more, *starts), 2, secs))
    print("| formation | steps/s | range |\n|---|---|---|")
    for name, found in rates.items():
        print(
            f"| {name} | {statistics.median(found):,.0f} | {min(found):,.0f} to {max(found):,.0f} |"
        )


def mario(rounds: int, secs: float) -> None:
    """Steps/s of the recipe with four actors, in one process, and of a bare loop."""
    starts = ("--dqn.learning_starts", "500")
    how: dict[str, Callable[[], float]] = {
        "four actors": lambda: learning_rate_of(("mario", "--actors", "4", *starts), secs),
        "one process": lambda: learning_rate_of(("mario", "--engine", "inline", *starts), secs),
        "bare loop": lambda: bare_mario(secs),
    }
    rates: dict[str, list[float]] = {name: [] for name in how}
    for _ in range(rounds):
        for name, measure in how.items():
            rates[name].append(measure())
            print(f"{name}: {rates[name][-1]:.1f} steps/s", file=sys.stderr, flush=True)
    print("| Mario, one update for 3 steps | steps/s | four actors make |\n|---|---|---|")
    for name, found in rates.items():
        ratios = [mine / other for mine, other in zip(rates["four actors"], found, strict=True)]
        print(
            f"| {name} | {statistics.median(found):.1f} | {statistics.median(ratios):.2f} times "
            f"({min(ratios):.2f} to {max(ratios):.2f}) |"
        )


def learning_rate_of(words: tuple[str, ...], secs: float) -> float:
    """Steps/s from two seconds after the first update."""
    with tempfile.TemporaryDirectory() as root:
        run, log = Path(root) / "run", Path(root) / "log"
        command = [sys.executable, "-m", "rookery", "train", *words, *COMMON, "--run", str(run)]
        with log.open("wb") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said, cwd=root)
        try:
            return learning(run / "metrics.jsonl", secs, log)
        finally:
            process.terminate()
            process.wait(60.0)


def learning(path: Path, secs: float, log: Path) -> float:
    deadline = time.monotonic() + 300.0 + secs
    while time.monotonic() < deadline:
        records = read_metrics(path) if path.exists() else []
        learned = [each for each in records if "train/loss" in each]
        learned = [each for each in learned if each["wall_secs"] > learned[0]["wall_secs"] + 2]
        if learned and (took := learned[-1]["wall_secs"] - learned[0]["wall_secs"]) >= secs:
            return float(learned[-1]["steps"] - learned[0]["steps"]) / took
        time.sleep(0.5)
    raise SystemExit(f"nothing was learned for {secs:g} s: {log.read_text()}")


def bare_mario(secs: float) -> float:
    """The loop of bare_mario.py."""
    command = [sys.executable, str(HERE / "benchmarks" / "bare_mario.py"), "--secs", str(secs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["steps_per_s"])


PARTS = {"requests": requests, "scaling": scaling, "pong": pong, "mario": mario}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=10.0, help="of each measurement")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = str(HERE)
    torch.set_num_threads(1)
    PARTS[given.part](given.rounds, given.secs)


if __name__ == "__main__":
    main()
