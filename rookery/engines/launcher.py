"""Which MPI launcher started this process, told from what it put into the environment.

Nothing of MPI is imported here: outside an MPI run it must not be.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

_VARIABLES = (
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, srun --mpi=pmi2
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),  # srun --mpi=pmix
)

HEARD_SECS = 0.2
"""What a process says less than this before it has its job ended, a launcher may lose."""


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


def openmpi_started_us(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether only OpenMPI's library can find the other ranks."""
    return "OMPI_COMM_WORLD_RANK" in environment


def cancel_step(environment: Mapping[str, str] = os.environ) -> None:
    """Have Slurm kill every rank, if srun started this one: it lets them go on when one is dead.

    mpiexec ends them by itself.
    """
    step = slurm_step_of(environment)
    if step is not None:
        with contextlib.suppress(OSError):  # this node has no scancel
            subprocess.run(["scancel", step], check=False)


def slurm_step_of(environment: Mapping[str, str]) -> str | None:
    """The job and step of a rank that srun started; None for every other.

    An mpiexec within a Slurm job hands its own variables on; they tell nothing of its ranks.
    """
    launch = launch_of(environment)
    place = (environment.get("SLURM_PROCID"), environment.get("SLURM_STEP_NUM_TASKS"))
    if launch is None or place != (str(launch.rank), str(launch.size)):
        return None
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    return f"{job}.{step}" if job.isdigit() and step.isdigit() else None
