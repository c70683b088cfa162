"""Every random stream of a run, derived from its one seed.

A stream is named by a role, a replica and further indices, so streams never overlap, never depend
on the order in which processes start, and stay the same when other roles are added::

    rng = stream(run_seed, "actor", replica)          # a NumPy generator
    env.reset(seed=seed_of(run_seed, "env", env_index, episode))
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _sequence(run_seed: int, role: str, *path: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(run_seed, spawn_key=(zlib.crc32(role.encode()), *path))


def stream(run_seed: int, role: str, *path: int) -> np.random.Generator:
    """A generator of its own for ``role`` and ``path``."""
    return np.random.Generator(np.random.PCG64(_sequence(run_seed, role, *path)))


def seed_of(run_seed: int, role: str, *path: int) -> int:
    """A 31-bit integer seed for code that wants an integer, such as ``Env.reset``."""
    return int(_sequence(run_seed, role, *path).generate_state(1)[0] >> 1)


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """The generator's state as JSON-able data."""
    return dict(rng.bit_generator.state)


def restore_generator(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Put ``rng`` back to what :func:`generator_state` saw."""
    rng.bit_generator.state = state


GENERATOR_WORDS = 6
_LOW_64 = (1 << 64) - 1


def encode_generator(generator: np.random.Generator) -> NDArray[np.uint64]:
    """A PCG64 generator's whole state as 6 numbers: state and increment (high, low), spare half."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise TypeError(f"expected a PCG64 generator, got {state['bit_generator']}")
    value, increment = state["state"]["state"], state["state"]["inc"]
    words = [value >> 64, value & _LOW_64, increment >> 64, increment & _LOW_64]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def decode_generator(words: NDArray[Any], generator: np.random.Generator) -> None:
    """Put a state from :func:`encode_generator` into ``generator``."""
    value_high, value_low, inc_high, inc_low, has_spare, spare = (int(word) for word in words)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": value_high << 64 | value_low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has_spare,
        "uinteger": spare,
    }
