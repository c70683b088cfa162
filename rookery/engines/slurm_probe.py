"""Before a job's run begins: do all its nodes see the run directory, with the same packages?

The first node leaves a file there, and every node looks for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rookery.core.errors import UserError
from rookery.runs.atomic import write_atomic, writing
from rookery.runs.slurm_job import read_slurm_job, write_slurm_job
from rookery.runs.versions import check_versions, versions_here

FILE_NAME = "slurm-probe.json"
SEEN_SECS = 30.0
"""How long a network file system may take to show a new file."""
LOOK_SECS = 0.2


def leave_probe(run: Path, environ: Mapping[str, str] = os.environ) -> None:
    """On the first node: the file, and which job this is."""
    if not run.is_dir():
        raise UserError(
            f"{_node(environ)} does not see {run}: the nodes do not share it with where the job "
            "was submitted; choose a --run on a file system that all see"
        )
    known = read_slurm_job(run)
    if known is not None:  # the script may have been submitted by hand
        write_slurm_job(run, replace(known, job=environ.get("SLURM_JOB_ID", "")))
    told = {"session": _session(environ), "node": _node(environ), "versions": versions_here()}
    with writing(run / FILE_NAME):
        write_atomic(run / FILE_NAME, (json.dumps(told) + "\n").encode())


def check_node(
    run: Path, environ: Mapping[str, str] = os.environ, wait_secs: float = SEEN_SECS
) -> None:
    """On every node: refuse to go on without the file, or with other versions than it tells of."""
    deadline = time.monotonic() + wait_secs
    while (told := _read(run)).get("session") != _session(environ):
        if time.monotonic() > deadline:
            raise UserError(
                f"{_node(environ)} does not see {run / FILE_NAME}, which the job's first node has "
                "written: they do not share it; choose a --run on a file system that all see"
            )
        time.sleep(LOOK_SECS)
    check_versions(_node(environ), versions_here(), told["node"], told["versions"])


def _session(environ: Mapping[str, str]) -> str:
    """This time that the job runs, and no other."""
    return f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_RESTART_COUNT', '0')}"


def _node(environ: Mapping[str, str]) -> str:
    return f"node {environ.get('SLURMD_NODENAME') or os.uname().nodename}"


def _read(run: Path) -> dict[str, Any]:
    try:
        data = json.loads((run / FILE_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
