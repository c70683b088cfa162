"""The thread budget: how many compute threads each role would have, and whether they fit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from rookery.doctor.finding import Finding, Wanted, note, ok, warning
from rookery.doctor.machine import usable_cores


def budget(
    wanted: Wanted, cores: int | None = None, environ: Mapping[str, str] = os.environ
) -> Iterator[Finding]:
    """Threads of the roles against the cores."""
    number = cores if cores is not None else usable_cores()[0]
    yield _roles(wanted, number)
    yield _openmp(number, environ)


def _roles(wanted: Wanted, cores: int) -> Finding:
    if wanted.config is None:
        many = "an actor for each core" if cores > 1 else "one actor"
        text = f"inline: 1 process, 1 thread; local: {many} and a learner, 1 thread each"
        return ok("threads", text, cores=cores)
    each = {node.name: (node.replicas, node.num_threads) for node in wanted.nodes}
    shown = ", ".join(
        f"{name}{f' x{replicas}' if replicas > 1 else ''} {threads}"
        for name, (replicas, threads) in each.items()
    )
    data = {
        "cores": cores,
        "roles": {name: {"replicas": r, "threads": t} for name, (r, t) in each.items()},
    }
    learner = each["learner"][1] if "learner" in each else 1
    if wanted.engine == "inline":
        text = f"one process takes turns, with {learner} for {cores} cores"
        if learner > cores:
            block = wanted.config.formation
            return warning("threads", text, f"{block}.learner_threads={cores}", **data)
        return ok("threads", text, **data)
    crowded = [name for name, (replicas, threads) in each.items() if replicas * threads > cores]
    total = sum(replicas * threads for replicas, threads in each.values())
    text = f"{shown}: {total} for {cores} cores"
    if crowded:
        remedy = (
            f"--actors {cores}"
            if "actor" in crowded
            else f"--{wanted.config.formation}.learner_threads {cores}"
        )
        return warning("threads", f"{text}: {crowded[0]} alone has too many", remedy, **data)
    if total > cores:
        return note("threads", f"{text}; actors and learner take turns, so they fit", "", **data)
    return ok("threads", text, **data)


def _openmp(cores: int, environ: Mapping[str, str]) -> Finding:
    given = environ.get("OMP_NUM_THREADS", "")
    if not given:
        return ok("OpenMP", "OMP_NUM_THREADS is not set; Rookery sets it for each of its processes")
    text = f"OMP_NUM_THREADS={given}; Rookery's processes have their own"
    if given.isdigit() and int(given) > cores:
        return note("OpenMP", f"{text} (more than the {cores} cores)", "")
    return ok("OpenMP", text)
