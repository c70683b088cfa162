"""What a table takes in memory, and which observations it compresses."""

from __future__ import annotations

import numpy as np

from rookery.core.sequence import StepSpec
from rookery.replay.columns import Column, PlainColumn
from rookery.replay.frames import FrameColumn, num_stacked
from rookery.replay.rows import column_specs
from rookery.replay.settings import TableConfig

PACKED = 10.0
"""How many times smaller a frame is taken to become. Lz4 makes a 15th (MsPacman) to a 60th (Pong)
of Atari's; pictures of the world, which are noisy, it leaves nearly as large as they are."""


def make_columns(
    spec: StepSpec, frames: frozenset[str], num_chunks: int, chunk_steps: int
) -> dict[str, Column]:
    """Empty columns; the leaves named in ``frames`` are kept once and compressed."""
    packed = {f"obs/{name}" for name in frames}
    return {
        name: (FrameColumn if name in packed else PlainColumn)(leaf, num_chunks, chunk_steps)
        for name, leaf in column_specs(spec).items()
    }


def image_leaves(spec: StepSpec) -> frozenset[str]:
    """Leaves that look like stacks of images: uint8, and three axes or more."""
    return frozenset(
        name for name, leaf in spec.obs.items() if leaf.dtype == np.uint8 and len(leaf.shape) >= 3
    )


def estimate_bytes(
    config: TableConfig,
    spec: StepSpec,
    frames: frozenset[str] | None = None,
    frame_bytes: float | None = None,
    packed: float = PACKED,
) -> int:
    """What a full table will hold, told before it is made.

    ``frame_bytes`` is what a compressed frame takes, by default a raw one's bytes by ``packed``.
    """
    stacks = image_leaves(spec) if frames is None else frames
    rows = config.num_chunks * config.chunk_steps
    tree = 16 << max(config.num_places - 1, 0).bit_length()
    total = tree + config.num_chunks * 24
    total += config.num_places * (49 + sum(leaf.num_bytes for leaf in spec.state.values()))
    for name, leaf in column_specs(spec).items():
        if name.removeprefix("obs/") not in stacks:
            total += (rows + 1) * leaf.num_bytes
            continue
        stacked = num_stacked(leaf.shape)
        raw = leaf.num_bytes // stacked
        each = raw / packed if frame_bytes is None else frame_bytes
        num_frames = rows + config.num_chunks * (stacked - 1)
        room = config.num_streams * (config.chunk_steps + 2 * stacked) * raw
        total += int(num_frames * each) + room + 4 * rows + 45 * config.num_chunks
    return total
