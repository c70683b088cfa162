"""The settings of a run that is spread over the nodes of a cluster.

The head and hosts that join it: how many act on each, and what its formation makes of the flags
that only some formations have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rookery.core.errors import UserError
from rookery.formations.settings import formation_config_class, formation_names
from rookery.recipes.settings import settings_from_flags
from rookery.runs.config import MOST_PLACES, RunConfig

CLUSTER_FLAGS = ("servers", "grads", "simulators")
"""Flags that only some formations have."""
_OF_HOSTS = ("actors", "workers", "listen", "places", "token_file")
_ANYWHERE = "0.0.0.0:20000"
"""What stands for the head's address until there is a job."""


@dataclass(frozen=True, kw_only=True)
class OnNodes:
    """How a run is spread."""

    num_hosts: int
    """Nodes beyond the head's whose hosts act."""
    apart: tuple[str, ...] = ()
    """Roles that have a node of their own beyond those."""
    cpus: int
    """Of each node."""
    host_actors: int | None = None
    """How many act on each host; None: as the formation has it."""
    flags: Mapping[str, int] = field(default_factory=dict)
    """Those of :data:`CLUSTER_FLAGS` that were given."""


def settings_on_nodes(
    what: str | None, given: Mapping[str, str], nodes: OnNodes
) -> tuple[RunConfig, int]:
    """The configuration of the head, and how many act on each host.

    ``given`` are the flags of ``rookery train``.
    """
    alone = settings_from_flags(what, {k: v for k, v in given.items() if k not in _OF_HOSTS})
    formation, joined = alone.formation_config, alone.joined
    if nodes.host_actors is not None and nodes.host_actors < 1:
        raise UserError(f"--host-actors: must be at least 1, got {nodes.host_actors}")
    each = nodes.host_actors or formation.host_actors or nodes.cpus
    places = nodes.num_hosts * each
    flags = {"engine": "local"} | dict(given)
    if nodes.apart:
        flags["hosts.leaves"] = f"[{','.join(nodes.apart)}]"
        if alone.record.episodes == 0 and "recorder" in nodes.apart:
            flags["record.episodes"] = "1"
        if alone.eval.every_steps is None:
            flags["eval.every_steps"] = str(alone.checkpoint.every_steps)
    if nodes.num_hosts or nodes.apart:
        if joined == "none" and nodes.num_hosts:
            raise UserError(
                f"--nodes: formation {alone.formation} shares memory and stays on one machine; "
                f"use --nodes {1 + len(nodes.apart)}, or another --formation"
            )
        _check_places(nodes.num_hosts, each)
        flags = {"listen": _ANYWHERE} | flags
        if places:
            flags["places"] = str(places)
        if joined == "some" and places and not {"actors", "workers"} & given.keys():
            flags["actors"] = str(places + _at_head(alone, nodes.cpus))
    return _with_cluster_flags(what, flags, alone, nodes.flags), each


def at_head_of(config: RunConfig, wanted: int | None = None) -> int:
    """How many act beside the learner: ``wanted``, or as few as can be; hosts bring the rest."""
    formation = config.formation_config
    if config.joined == "none":
        return formation.num_actors
    least = 1 if config.joined == "some" and formation.acting_role == "worker" else 0
    if wanted is not None and wanted < least:
        raise UserError(
            f"ray.head_actors: one of the {formation.num_actors} workers must be at the head, "
            f"where the session is kept, got {wanted}"
        )
    return least if wanted is None else wanted


def over_hosts(config: RunConfig, at_head: int, listen: str = _ANYWHERE) -> RunConfig:
    """The settings of a head at which ``at_head`` of those act that there are, and the others on
    hosts: who learns what does not change with where they are."""
    places = config.formation_config.num_actors - at_head
    if not places:
        return config
    return replace(config, hosts=replace(config.hosts, listen=listen, places=places, share=True))


def _check_places(num_hosts: int, each: int) -> None:
    if num_hosts * each > MOST_PLACES:
        raise UserError(
            f"--nodes: {num_hosts} hosts with {each} actors each are more than {MOST_PLACES} "
            f"actors; have at most --host-actors {max(MOST_PLACES // num_hosts, 1)}, or fewer nodes"
        )


def _at_head(config: RunConfig, cpus: int) -> int:
    """How many of a fixed number act beside the head's other processes."""
    formation = config.formation_config
    least = 1 if formation.acting_role == "worker" else 0
    return max(cpus - (config.behind or config).formation_config.num_beside, least)


def _with_cluster_flags(
    what: str | None, flags: dict[str, str], alone: RunConfig, given: Mapping[str, int]
) -> RunConfig:
    known = alone.formation_config.cluster_flags
    for flag, number in given.items():
        if flag not in known:
            raise UserError(f"--{flag}: formation {alone.formation} has none{_who_has(flag)}")
        if number < 1:
            raise UserError(f"--{flag}: must be at least 1, got {number}")
    settings = {known[flag]: number for flag, number in given.items()}
    if "env.num_envs" in settings:  # which those of one are, and the setting divided among all
        settings["env.num_envs"] *= max(_num_dividing(flags, alone), 1)
    return settings_from_flags(what, flags | {path: str(n) for path, n in settings.items()})


def _num_dividing(flags: Mapping[str, str], alone: RunConfig) -> int:
    """How many share env.num_envs."""
    text = flags.get("actors") or flags.get("workers") or ""
    return int(text) if text.isdecimal() else alone.formation_config.num_actors


def _who_has(flag: str) -> str:
    found = [
        name for name in formation_names() if flag in formation_config_class(name).cluster_flags
    ]
    return f"; --formation {' or '.join(found)} does" if found else "; leave it out"
