"""Tiny runs to watch and to record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rookery

TINY: dict[str, Any] = {
    "envs": 4,
    "ppo": {"rollout_steps": 16, "num_minibatches": 2, "num_epochs": 1},
    "stop_at": None,
    "eval": {"episodes": 0},
    "metrics": {"sinks": ["jsonl"]},
}


def train_tiny(what: str, path: Path, **more: Any) -> Path:
    """A run of a few updates."""
    return rookery.train(what, run=path, **({"steps": 128} | TINY | more)).path


def train_snake(path: Path) -> Path:
    """A Snake agent that has learned nothing but is judged by sampling, as the recipe is."""
    return train_tiny("snake", path, eval={"episodes": 0, "deterministic": False})
