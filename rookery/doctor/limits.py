"""Limits on open files and processes, against what a run would need."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from rookery.doctor.cgroup import Cgroup
from rookery.doctor.finding import Finding, Wanted, ok, problem, warning
from rookery.doctor.machine import usable_cores

BASE_FILES = 64
"""Libraries, logs, checkpoints and the terminal."""
FILES_PER_ACTOR = 4
"""A control socket, a bell, and both while a replacement starts."""
BASE_THREADS = 8
"""Threads that a process with torch has beside those that compute."""


def actors_of(wanted: Wanted) -> int:
    """Actors or workers of the program; one for each core if there is none."""
    found = [node.replicas for node in wanted.nodes if node.name in ("actor", "worker")]
    return found[0] if found else usable_cores()[0]


def files_needed(actors: int) -> int:
    """Files that the driver of a run with ``actors`` may have open at once."""
    return BASE_FILES + FILES_PER_ACTOR * actors


def open_files(wanted: Wanted) -> Iterator[Finding]:
    """Whether a run's processes may open what they need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    actors = actors_of(wanted)
    need = files_needed(actors)
    text = f"{_number(soft)} at once (up to {_number(hard)}); {actors} actors need {need}"
    data = {"soft": soft, "hard": hard, "needed": need}
    if soft == resource.RLIM_INFINITY or soft >= need:
        yield ok("open files", text, **data)
        return
    wish = 1 << max(need - 1, 1023).bit_length()
    if hard == resource.RLIM_INFINITY or hard >= need:
        within = wish if hard == resource.RLIM_INFINITY else min(wish, hard)
        yield problem("open files", text, f"`ulimit -n {within}` before the run", **data)
    else:
        remedy = "have the hard limit raised (nofile in limits.conf), or use fewer --actors"
        yield problem("open files", text, remedy, **data)


def processes(wanted: Wanted, cgroup: Cgroup | None = None) -> Iterator[Finding]:
    """Whether as many processes and threads may run."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = [limit for limit in (soft, (cgroup or Cgroup()).processes()) if limit is not None]
    limits = [limit for limit in allowed if limit != resource.RLIM_INFINITY]
    members = sum(node.replicas for node in wanted.nodes) or actors_of(wanted) + 2
    threads = sum(node.replicas * node.num_threads for node in wanted.nodes)
    need = 1 + (1 if wanted.config and wanted.engine == "inline" else members) * BASE_THREADS
    need += threads
    data = {"limit": min(limits, default=None), "needed": need}
    if not limits:
        yield ok("processes", "no limit", **data)
        return
    text = f"at most {min(limits)} processes and threads; a run needs about {need}"
    if min(limits) < need:
        remedy = "`ulimit -u`, or --pids-limit of the container, allows more; or use fewer --actors"
        yield warning("processes", text, remedy, **data)
    else:
        yield ok("processes", text, **data)


def _number(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else f"{limit}"
