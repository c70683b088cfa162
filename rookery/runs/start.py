"""What a new run may start from: the weights of a run, a checkpoint, a bundle or a file."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from rookery.core.errors import UserError
from rookery.runs.checkpoint_files import MANIFEST, Checkpoint, State
from rookery.runs.find import load_checkpoint
from rookery.runs.tensorfile import DamagedError, read_safetensors
from rookery.zoo.bundle import is_bundle, read_bundle
from rookery.zoo.catalog import PREFIX, find_bundle

_LOG = logging.getLogger(__name__)

WEIGHTS = "weights.safetensors"
"""Of the files of a checkpoint, the one with the policy's weights."""


def best_or_latest(path: Path, parts: Iterable[str] | None = None) -> Checkpoint:
    """The checkpoint a user means by RUN alone: itself, or the best of a run, else its latest."""
    if os.path.isfile(path / MANIFEST):
        return load_checkpoint(path, None, parts)
    try:
        return load_checkpoint(path, "best", parts)
    except DamagedError as error:
        _LOG.warning("%s; using the latest instead", error)
    except UserError:
        pass  # nothing was evaluated yet; if there is no run at all, the next line says so
    return load_checkpoint(path, "latest", parts)


def starting_weights(path: Path) -> Checkpoint:
    """The weights that ``--init-from`` names: a run, a checkpoint, zoo:NAME, a safetensors file."""
    bundle = find_bundle(path)
    if bundle is not None and (str(path).startswith(PREFIX) or is_bundle(bundle)):
        return _weights_of_bundle(bundle)
    if not os.path.isfile(path):
        return best_or_latest(path, ["weights"])
    if (path.parent / MANIFEST).is_file():
        if path.name != WEIGHTS:
            raise UserError(
                f"--init-from {path}: it holds no weights; give the checkpoint, {path.parent}"
            )
        return load_checkpoint(path.parent, None, ["weights"])
    try:
        arrays = read_safetensors(path)
    except DamagedError as error:
        raise UserError(
            f"--init-from {path}: {error}; give a run, a checkpoint or a safetensors file"
        ) from error
    return Checkpoint(path=path, steps=0, parts={"weights": State(arrays)})


def _weights_of_bundle(path: Path) -> Checkpoint:
    bundle = read_bundle(path)
    weights = State(bundle.arrays, {"signature": bundle.info["signature"]})
    return Checkpoint(path=path, steps=bundle.info["training"]["steps"], parts={"weights": weights})
