"""How fast frames become messages and back, and how much smaller they get:

    .venv/bin/python benchmarks/wire.py

MB/s are of what is carried, before compression; the ratio is to the bytes of the message. `tried`
says what share of the time to pack went into LZ4.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest import mock

import numpy as np

from rookery.carriers import wire
from rookery.core.spec import Arrays, ArraySpec
from rookery.envs.make import EnvConfig, make_env

ENVS, SECS = 8, 0.5


def atari_frames(game: str, num: int) -> np.ndarray:
    """The last ``num`` grey frames of some random play, as agents see them."""
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


def frames() -> dict[str, list[Arrays]]:
    """For each case the frames of one packet."""
    rng = np.random.default_rng(0)
    pong, pacman = (atari_frames(game, 80) for game in ("Pong", "MsPacman"))

    def step(obs: np.ndarray) -> Arrays:
        """What one step of some environments takes."""
        return {
            "header": np.zeros(8, np.int64),
            "obs/obs": obs,
            "state/h": rng.normal(size=(ENVS, 64)).astype(np.float32),
            "extra/version": np.zeros(ENVS, np.int64),
            "action": rng.integers(0, 6, ENVS),
            "reward": np.zeros(ENVS, np.float32),
            **{
                name: np.zeros(ENVS, np.bool_)
                for name in ("terminated", "truncated", "valid", "anew")
            },
        }

    return {
        "steps of Pong": [step(np.stack([pong[n]] * ENVS)) for n in range(16)],
        "steps of MsPacman": [step(pacman[n : n + ENVS]) for n in range(16)],
        "rollout of Pong": [{"obs": pong[:, None]}],
        "rollout of MsPacman": [{"obs": pacman[:, None]}],
        "noise as pictures": [{"obs": rng.integers(0, 256, pong.shape, np.uint8)}],
        "weights, 7 MB": [{"params": rng.normal(size=7 << 18).astype(np.float32)}],
        "steps of CartPole": [step(rng.normal(size=(ENVS, 4)).astype("f4")) for _ in range(64)],
        "one step of CartPole": [step(rng.normal(size=(ENVS, 4)).astype(np.float32))],
    }


def secs_of(work: Callable[[], object]) -> float:
    """Of the fastest turn within some time."""
    best, end = float("inf"), time.perf_counter() + SECS
    while time.perf_counter() < end:
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return best


def row(name: str, arrays: list[Arrays]) -> str:
    """One line of the table."""
    numbered = [(0, each) for each in arrays]
    num_bytes = sum(array.nbytes for each in arrays for array in each.values())
    specs = {0: {key: ArraySpec(array.shape, array.dtype) for key, array in arrays[0].items()}}
    data = wire.pack(numbered)
    pack = secs_of(lambda: wire.pack(numbered))
    unpack = secs_of(lambda: wire.unpack(data, specs))
    with mock.patch.object(wire, "MIN_COMPRESSED_BYTES", 1 << 60):
        plain = secs_of(lambda: wire.pack(numbered))
    cells = [
        name,
        f"{num_bytes:,}",
        f"{num_bytes / len(data):.2f}",
        f"{num_bytes / pack / 1e6:,.0f}",
        f"{num_bytes / unpack / 1e6:,.0f}",
        f"{1e6 * (pack + unpack) / len(arrays):.0f}",
        f"{max(1 - plain / pack, 0):.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """A table."""
    print("| frames | bytes | ratio | pack MB/s | unpack MB/s | us a frame | tried |")
    print("|---|---|---|---|---|---|---|")
    for name, arrays in frames().items():
        print(row(name, arrays))


if __name__ == "__main__":
    main()
