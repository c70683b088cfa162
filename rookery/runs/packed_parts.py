"""Parts of a checkpoint as bytes, for whoever has no access to its files: safetensors and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
import torch

from rookery.runs.checkpoint_files import State


def pack_parts(parts: dict[str, State]) -> bytes:
    """All of ``parts``."""
    arrays = {
        f"{part}/{name}": torch.as_tensor(array).contiguous()
        for part, state in parts.items()
        for name, array in state.arrays.items()
    }
    told = {part: json.dumps(state.data) for part, state in parts.items()}
    packed: bytes = safetensors.torch.save(arrays)
    head = json.dumps(told).encode()
    return len(head).to_bytes(8, "little") + head + packed


def unpack_parts(data: bytes) -> dict[str, State]:
    """What :func:`pack_parts` made bytes of."""
    start = 8 + int.from_bytes(data[:8], "little")
    arrays = safetensors.torch.load(data[start:])
    parts = {part: State({}, json.loads(text)) for part, text in json.loads(data[8:start]).items()}
    for name, tensor in arrays.items():
        part, _, leaf = name.partition("/")
        parts[part].arrays[leaf] = tensor
    return parts


def of_a_checkpoint(parts: Mapping[str, State]) -> bool:
    """Whether ``parts`` say how far a run has come, or are only what a new one begins with."""
    return "learner" in parts
