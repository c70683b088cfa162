"""Whether an MPI launcher started this process, told from what it put into the environment.

Nothing of MPI is imported here: outside an MPI run it must not be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, srun --mpi=pmi2
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),  # srun --mpi=pmix
)


@dataclass(frozen=True, slots=True)
class Launch:
    """This process's place among those that were started together."""

    rank: int
    size: int


def launch_of(environment: Mapping[str, str] = os.environ) -> Launch | None:
    """The place that the launcher's variables give; None if there was no launcher."""
    for rank, size in _VARIABLES:
        if environment.get(rank, "").isdigit() and environment.get(size, "").isdigit():
            return Launch(int(environment[rank]), int(environment[size]))
    return None
