"""Memory and speed of replay: `python benchmarks/replay.py` prints the tables of docs/replay.md.

Frames are those of 1,000 steps of random play in real games. A million steps are what a full table
holds by `estimate_bytes`, with the bytes that a frame took here. With `--full` a table is really
filled with a million steps of MsPacman, 16,000 of random play again and again, which takes minutes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ale_py
import numpy as np
import torch

from rookery.core.sequence import Steps, StepSpec
from rookery.core.spec import ArraySpec
from rookery.ops.priority import importance_weights
from rookery.replay.frames import FrameColumn
from rookery.replay.memory import estimate_bytes
from rookery.replay.sequences import SequenceConfig
from rookery.replay.settings import TableConfig
from rookery.replay.table import Table

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)
ATARI = StepSpec(obs={"obs": ArraySpec((4, 84, 84), np.dtype(np.uint8))}, action=ArraySpec((), INT))
LSTM = {"h": ArraySpec((512,), FLOAT), "c": ArraySpec((512,), FLOAT)}
RECURRENT = StepSpec(obs=ATARI.obs, action=ATARI.action, state=LSTM)
VECTOR = StepSpec(obs={"obs": ArraySpec((8,), FLOAT)}, action=ArraySpec((), INT))
FLAT = SequenceConfig(n_step=3)
R2D2 = SequenceConfig(length=80, overlap=40, burn_in=40, n_step=5)
MILLION, STREAMS = 1_000_000, 256


def played(game: str, num_steps: int = 1000, num_envs: int = 2) -> Table:
    """A table of random play."""
    table = Table(TableConfig(capacity_steps=10_000, num_streams=num_envs, sequence=FLAT), ATARI)
    for steps in random_play(game, num_steps, num_envs):
        table.put(steps)
    return table


def random_play(game: str, num_steps: int, num_envs: int) -> Iterator[Steps]:
    envs = ale_py.AtariVectorEnv(game, num_envs=num_envs)
    obs, _ = envs.reset(seed=1)
    obs, rng, over = obs.copy(), np.random.default_rng(0), np.zeros(num_envs, np.bool_)
    for _ in range(num_steps // num_envs):
        action = rng.integers(0, envs.single_action_space.n, num_envs)
        after, reward, terminated, truncated, _ = envs.step(action)
        after = after.copy()
        yield Steps(
            stream=np.arange(num_envs),
            obs={"obs": obs},
            action=action,
            reward=np.asarray(reward, np.float64),
            terminated=terminated.copy(),
            truncated=truncated.copy(),
            final_obs={"obs": after},
            valid=~over,
        )
        obs, over = after, terminated | truncated
    envs.close()


def frames_of(table: Table) -> FrameColumn:
    column = table._store.columns["obs/obs"]
    assert isinstance(column, FrameColumn)
    return column


def frame_bytes(game: str) -> float:
    """What a frame of ``game`` takes, compressed in chunks of the default size."""
    return frames_of(played(game)).frame_bytes


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


def choosing() -> None:
    """From a table that holds a million sequences: which to learn from, and what they are worth."""
    rng = np.random.default_rng(0)
    config = TableConfig(
        capacity_steps=MILLION, num_streams=STREAMS, sequence=FLAT, priority_exponent=0.6
    )
    table = Table(config, VECTOR)
    steps = vectors(STREAMS)
    while table.size < MILLION - 4 * STREAMS:
        table.put(steps)
    sample = table.sample(512, rng)

    def choose() -> None:
        _, probability = table._tree.sample(512, rng)
        importance_weights(torch.from_numpy(probability), 0.4)

    def update() -> None:
        table.update_priorities(sample.keys, rng.random(512))
        _ = table._tree.total  # brings the sums up to date

    print(f"| choose 512 of {table.size:,}, with weights | {median_micros(choose):.0f} us |")
    print(f"| update the priorities of 512 of them | {median_micros(update):.0f} us |")
    whole = median_micros(lambda: table.sample(512, rng))
    print(f"| choose and gather 512 of them, vectors of 8 | {whole:.0f} us |")


def gathering(game: str = "ms_pacman") -> None:
    """Images, apart from choosing them: all of it, and what decompressing takes of it."""
    table, rng = played(game, num_steps=8000, num_envs=16), np.random.default_rng(0)
    column, out = frames_of(table), table.allocate(512)
    places = table._tree.sample(512, rng)[0]
    items, steps = table._items, table.config.sequence.num_steps
    num = items.num_steps[places] + 1
    rows = table._store.rows_of(items.first_row[places], items.padding[places], num, steps + 1)
    chunks = np.unique(rows[rows != table._store.zero_row] // table.config.chunk_steps)
    full = [chunk for chunk in chunks.tolist() if column._packed[chunk] is not None]
    whole = median_micros(lambda: table._gather(places, out), repeats=20)

    def unpack() -> None:
        for chunk in full:
            column._frames(chunk)

    unpacking = median_micros(unpack, repeats=20)
    print(f"| gather 512 sequences of 4 images of {game} | {whole / 1e3:.1f} ms |")
    print(f"| of that, decompressing {len(full)} chunks of 16 steps | {unpacking / 1e3:.1f} ms |")


def vectors(num_envs: int) -> Steps:
    """A step of each environment."""
    return Steps(
        stream=np.arange(num_envs),
        obs={"obs": np.zeros((num_envs, 8), np.float32)},
        action=np.zeros(num_envs, np.int64),
        reward=np.zeros(num_envs),
        terminated=np.zeros(num_envs, np.bool_),
        truncated=np.zeros(num_envs, np.bool_),
    )


def speed() -> None:
    print("\n| what | time |")
    print("|---|---|")
    choosing()
    gathering()
    for num_envs in (8, 16, 32):
        table = Table(
            TableConfig(capacity_steps=20_000, num_streams=num_envs, sequence=FLAT), VECTOR
        )
        steps = vectors(num_envs)
        while table.num_steps < 20_000:
            table.put(steps)
        micros = mean_micros(lambda table=table, steps=steps: table.put(steps))  # type: ignore[misc]
        print(
            f"| put a step of each of {num_envs} environments into a full table | {micros:.0f} us |"
        )
        print(f"| that is, vectors of 8 | {num_envs / micros * 1e6:,.0f} steps/s |")


def full(game: str = "ms_pacman", num_envs: int = 16) -> None:
    """A million steps in fact: what the table counts, and what the process grew by."""
    steps = list(random_play(game, 16_000, num_envs))
    before = resident_bytes()
    config = TableConfig(capacity_steps=MILLION, num_streams=num_envs, sequence=FLAT)
    table, begun = Table(config, ATARI), time.perf_counter()
    for number in range(MILLION // num_envs):
        table.put(steps[number % len(steps)])
    secs, grown = time.perf_counter() - begun, resident_bytes() - before
    print(f"\n{table.num_steps:,} rows of {game}, {table.size:,} sequences: ", end="")
    print(f"{table.memory_bytes() / 1e9:.2f} GB counted, {grown / 1e9:.2f} GB resident, ", end="")
    print(f"{MILLION / secs:,.0f} steps/s put")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if "--full" in sys.argv[1:]:
        full()
    else:
        memory()
        speed()
