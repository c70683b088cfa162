"""Whether a command runs alone or as one rank of an MPI job."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from rookery.core.errors import UserError
from rookery.core.heap import keep_freed_memory
from rookery.engines.launcher import launch_of
from rookery.engines.rank_guard import guarded
from rookery.runs.config import RunConfig

Prepare = Callable[[], RunConfig]
Lead = Callable[[RunConfig], int]


def run_here_or_on_ranks(prepare: Prepare, lead: Lead, *, engine: str | None) -> int:
    """``lead`` with the settings that ``prepare`` gives; under MPI every rank does its part.

    ``engine`` is what the user asked for; without it MPI is used if several ranks were started.
    """
    keep_freed_memory()
    launch = launch_of()
    if launch is not None and launch.size > 1 and engine in (None, "mpi"):
        return guarded(launch.rank, lambda: _attend(prepare, lead))
    config = prepare()
    if config.engine == "mpi":
        if launch is None:
            raise UserError(
                "engine mpi: no MPI launcher started this process; "
                "`mpiexec -n 4 rookery train ...` does, or choose --engine local"
            )
        print("one rank alone: engine inline", file=sys.stderr)
        config = replace(config, engine="inline")
    return lead(config)


def _attend(prepare: Prepare, lead: Lead) -> int:
    from rookery.engines.mpi import attend

    return attend(prepare, lead)
