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
