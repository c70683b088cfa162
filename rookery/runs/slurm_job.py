"""The Slurm job of a run, noted in its directory."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rookery.runs.atomic import write_atomic, writing

FILE_NAME, SCRIPT_NAME = "slurm.json", "slurm.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """By what Slurm knows it, and how it was asked for."""

    job: str
    """Its number; '' before it is submitted."""
    command: str
    """The command line of ``rookery slurm``."""


def write_slurm_job(run: Path, found: SlurmJob) -> None:
    """Note the newest job of ``run``."""
    path = run / FILE_NAME
    with writing(path):
        write_atomic(path, (json.dumps(asdict(found)) + "\n").encode())


def read_slurm_job(run: Path) -> SlurmJob | None:
    """What :func:`write_slurm_job` noted; None for a run without a job."""
    try:
        data = json.loads((run / FILE_NAME).read_bytes())
        return SlurmJob(job=str(data["job"]), command=str(data["command"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
