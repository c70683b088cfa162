"""Parts for a checkpoint, what a store's directory holds, and a way to damage a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import State


def parts(value: float = 1.0) -> dict[str, State]:
    return {
        "weights": State(arrays={"b": torch.full((3,), value), "a": torch.full((2, 2), value)}),
        "replay": State(arrays={"obs": np.arange(6, dtype=np.uint8)}, data={"next": 3}),
        "counters": State(data={"updates": int(value)}),
    }


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def flip_bit(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
