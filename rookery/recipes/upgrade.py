"""Settings of earlier versions, as they are written now.

Version 1 had no ``version`` in its files. There ``env.num_envs`` was for each of those who act,
and now it is for the whole run::

    tree = upgraded(parse_yaml(text, where), where)

Only a whole configuration is taken for version 1: a run's config.yaml, or what ``--print_config``
printed. What has only some settings does not say how many acted, and is taken as it stands.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from rookery.core.errors import UserError
from rookery.recipes.catalog import Tree
from rookery.runs.config import VERSION

_LOG = logging.getLogger(__name__)

_COUNTS = {
    "allreduce": "num_workers",
    "async": "num_actors",
    "hogwild": "num_workers",
    "replay": "num_actors",
    "sync": "num_actors",
}
"""Formations of version 1, and where each had the number of those who act."""


def upgraded(tree: Tree, where: str) -> Tree:
    """``tree``, read from ``where``, as this version means it, and without its ``version``."""
    plain = {key: value for key, value in tree.items() if key != "version"}
    version = tree.get("version", 1)
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UserError(f"{where}: version: must be a whole number from 1, got {version!r}")
    if version > VERSION:
        raise UserError(
            f"{where}: version: {version} is of a newer Rookery, and this one knows {VERSION}; "
            "`pip install --upgrade rookery`"
        )
    return _from_first(plain, where) if version == 1 and _is_first(plain) else plain


def _is_first(tree: Tree) -> bool:
    """Whether ``tree`` is a whole configuration, without a setting that version 1 did not have."""
    formation, env = str(tree.get("formation")), tree.get("env")
    block, count = tree.get(formation), _COUNTS.get(formation)
    if count is None or not isinstance(block, Mapping) or not isinstance(env, Mapping):
        return False
    whole = "total_steps" in tree and isinstance(env.get("num_envs"), int)
    new = "threads" in tree or "batch_envs" in block
    return whole and not new and isinstance(block.get(count), int)


def _from_first(tree: Tree, where: str) -> Tree:
    """A whole configuration of version 1 in the settings of now; one line tells what changed."""
    formation = str(tree["formation"])
    block, count = dict(tree[formation]), _COUNTS[formation]
    actors, share = block.pop(count), tree["env"]["num_envs"]
    changes = []
    if actors != 1:
        changes.append(
            f"env.num_envs {share} for each of {actors} {count.removeprefix('num_')} is now "
            f"{actors * share} for the whole run"
        )
    out = dict(tree)
    if formation == "async":
        if (rollouts := block.pop("rollouts_per_batch", None)) is not None:
            block["batch_envs"] = rollouts * share
            changes.append(
                f"async.rollouts_per_batch {rollouts} is now async.batch_envs {rollouts * share}"
            )
        if threads := block.pop("threads", False):
            changes.append("async.threads is now threads")
        out["threads"] = threads
    if changes:
        remedy = " (unless it says version: 2)" if where.startswith("--config") else ""
        _tell(f"{where} of an earlier version: {', '.join(changes)}{remedy}")
    env = dict(tree["env"]) | {"num_envs": actors * share}
    return out | {"env": env, formation: {"num_actors": actors} | block}


@functools.cache
def _tell(line: str) -> None:
    """Once, however often a command reads the file."""
    _LOG.warning("%s", line)
