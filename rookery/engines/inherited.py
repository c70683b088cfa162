"""What actors of formation ``replay`` leave to those after them, in checkpoints.

The part ``bequests`` has it of all actors; where an actor's whole state was saved, it is in there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from rookery.core.errors import UserError
from rookery.core.spec import Arrays
from rookery.roles.explorer import Explorer, bequest_in
from rookery.roles.lane import group
from rookery.runs.checkpoint_files import State, read_manifest
from rookery.runs.find import load_checkpoint
from rookery.runs.tensorfile import SavedArrays

_LOG = logging.getLogger(__name__)
_PART = "bequests"


def bequest_part(left: Mapping[int, Arrays]) -> dict[str, State]:
    """What a checkpoint keeps of ``left``, by actor."""
    arrays: SavedArrays = {
        f"{actor}/{name}": array
        for actor, bequest in left.items()
        for name, array in bequest.items()
    }
    return {_PART: State(arrays)} if arrays else {}


def bequest_of(parts: Mapping[str, State], actor: int) -> Arrays:
    """What the checkpoint of ``parts`` has for the next ``actor``; empty if nothing."""
    if (whole := parts.get(f"actor-{actor}")) is not None:
        return bequest_in(whole)
    return group(parts[_PART], f"{actor}/") if _PART in parts else {}


def read_bequests(checkpoint: Path, num_actors: int) -> dict[int, Arrays]:
    """What the files of ``checkpoint`` have for the next actors; others are left out."""
    wanted = {_PART, *(f"actor-{actor}" for actor in range(num_actors))}
    there = [name for name in read_manifest(checkpoint)["parts"] if name in wanted]
    parts = load_checkpoint(checkpoint, parts=there).parts
    found = {actor: bequest_of(parts, actor) for actor in range(num_actors)}
    return {actor: bequest for actor, bequest in found.items() if bequest}


def inherit(explorer: Explorer, actor: int, left: Arrays) -> None:
    """Let ``explorer`` begin with what the ``actor`` before it ``left``, if it can."""
    try:
        explorer.inherit(left)
    except UserError as error:
        _LOG.warning("actor-%d knows nothing of what the one before it learned: %s", actor, error)
    else:
        _LOG.info("actor-%d goes on with what the one before it knew of arms and novelty", actor)
