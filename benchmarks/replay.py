"""Memory and speed of replay: `python benchmarks/replay.py` prints the tables of docs/replay.md.

Frames are those of 1,000 steps of random play in real games. A million steps are what a full table
holds by `estimate_bytes`, with the bytes that a frame took here.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import ale_py
import numpy as np

from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import ArraySpec
from rookery.replay.frames import FrameColumn
from rookery.replay.memory import estimate_bytes
from rookery.replay.sequences import SequenceConfig
from rookery.replay.settings import TableConfig
from rookery.replay.sum_tree import SumTree
from rookery.replay.table import Table

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
ATARI = StepSpec(obs={"obs": ArraySpec((4, 84, 84), np.dtype(np.uint8))}, action=ArraySpec((), INT))
LSTM = {"h": ArraySpec((512,), FLOAT), "c": ArraySpec((512,), FLOAT)}
RECURRENT = StepSpec(obs=ATARI.obs, action=ATARI.action, state=LSTM)
VECTOR = StepSpec(obs={"obs": ArraySpec((8,), FLOAT)}, action=ArraySpec((), INT))
FLAT = SequenceConfig(n_step=3)
R2D2 = SequenceConfig(length=80, overlap=40, burn_in=40, n_step=5)
MILLION, STREAMS = 1_000_000, 256


def frame_bytes(game: str, num_steps: int = 1000, num_envs: int = 2) -> float:
    """What a frame of ``game`` takes, compressed in chunks of the default size."""
    envs = ale_py.AtariVectorEnv(game, num_envs=num_envs)
    table = Table(TableConfig(capacity_steps=10_000, num_streams=num_envs, sequence=FLAT), ATARI)
    obs, _ = envs.reset(seed=1)
    obs, rng, over = obs.copy(), np.random.default_rng(0), np.zeros(num_envs, np.bool_)
    for _ in range(num_steps // num_envs):
        action = rng.integers(0, envs.single_action_space.n, num_envs)
        after, reward, terminated, truncated, _ = envs.step(action)
        table.put(
            Steps(
                stream=np.arange(num_envs),
                obs={"obs": obs},
                action=action,
                reward=np.asarray(reward, np.float64),
                terminated=terminated,
                truncated=truncated,
                final_obs={"obs": after},
                valid=~over,
            )
        )
        obs, over = after.copy(), terminated | truncated
    envs.close()
    column = table._store.columns["obs/obs"]
    assert isinstance(column, FrameColumn)
    return column.frame_bytes


def memory() -> None:
    print("| what | sequences | bytes a frame | a million steps |")
    print("|---|---|---|---|")
    for name, spec, sequence, games in (
        ("Atari, flat, n=3", ATARI, FLAT, ("pong", "ms_pacman", "breakout")),
        ("Atari, R2D2, LSTM 512", RECURRENT, R2D2, ("ms_pacman",)),
        ("vectors of 8, flat, n=3", VECTOR, FLAT, ("",)),
    ):
        config = TableConfig(
            capacity_steps=MILLION, num_streams=STREAMS, sequence=sequence, batch_size=64
        )
        for game in games:
            each = frame_bytes(game) if game else 0.0
            total = estimate_bytes(config, spec, frame_bytes=each)
            label = f"{name}, {game}" if game else name
            shown = f"{each:.0f}" if game else "-"
            print(f"| {label} | {config.num_places:,} | {shown} | {total / 1e9:.2f} GB |")


def median_micros(call: Callable[[], object], repeats: int = 300) -> float:
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return float(np.median(times)) * 1e6


def mean_micros(call: Callable[[], object], repeats: int = 300, rounds: int = 5) -> float:
    """The mean, as a chunk is dropped only now and then; of the best round."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - begun) / repeats)
    return min(times) * 1e6


def speed() -> None:
    print("\n| what | time |")
    print("|---|---|")
    rng = np.random.default_rng(0)
    tree = SumTree(MILLION)
    tree.refill(rng.random(MILLION))
    leaves, weights = rng.integers(0, MILLION, 512), rng.random(512)

    def update() -> None:
        tree.set(leaves, weights)
        _ = tree.total  # brings the sums up to date

    sampling = median_micros(lambda: tree.sample(512, rng))
    print(f"| choose 512 of a million with their probabilities | {sampling:.0f} us |")
    print(f"| update 512 priorities of a million | {median_micros(update):.0f} us |")
    for num_envs in (8, 16, 32):
        table = Table(
            TableConfig(capacity_steps=20_000, num_streams=num_envs, sequence=FLAT), VECTOR
        )
        steps = Steps(
            stream=np.arange(num_envs),
            obs={"obs": np.zeros((num_envs, 8), np.float32)},
            action=np.zeros(num_envs, np.int64),
            reward=np.zeros(num_envs),
            terminated=np.zeros(num_envs, np.bool_),
            truncated=np.zeros(num_envs, np.bool_),
        )
        while table.num_steps < 20_000:
            table.put(steps)
        micros = mean_micros(lambda table=table, steps=steps: table.put(steps))  # type: ignore[misc]
        print(
            f"| put a step of each of {num_envs} environments into a full table | {micros:.0f} us |"
        )
        print(f"| that is, vectors of 8 | {num_envs / micros * 1e6:,.0f} steps/s |")


if __name__ == "__main__":
    memory()
    speed()
