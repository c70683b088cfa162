"""``rookery runs``: the runs below a directory."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rookery.cli.arguments import Arguments
from rookery.engines.slurm_state import states_of
from rookery.runs.directory import RunSummary, list_runs
from rookery.runs.slurm_job import read_slurm_job

DEFAULT = Path("runs")


def main(argv: list[str]) -> int:
    """List the runs, newest first."""
    parser = Arguments(prog="rookery runs", description=__doc__)
    parser.add_argument(
        "root", type=Path, nargs="?", default=DEFAULT, help="where they are (default: runs)"
    )
    parser.add_argument("--tag", help="only runs with this tag")
    parser.add_argument("--json", action="store_true", help="pure JSON on standard output")
    args = parser.parse_args(argv)
    runs = list_runs(args.root) if args.root.exists() or args.root != DEFAULT else []
    if args.tag is not None:
        runs = [run for run in runs if args.tag in run.tags]
    jobs = _jobs(runs)
    if args.json:
        rows = [
            {
                "path": str(run.path),
                "name": run.name,
                "state": run.state,
                "steps": run.steps,
                "best": run.best_score,
                "last_activity": run.last_activity,
                "tags": list(run.tags),
                "films": run.films,
            }
            | ({"job": jobs[run.path]._asdict()} if run.path in jobs else {})
            for run in runs
        ]
        print(json.dumps(rows))
        return 0
    if not runs:
        print(f"no runs in {args.root}; `rookery train cartpole` makes one", file=sys.stderr)
    for run in runs:
        score = run.best_score
        best = "-" if score is None else f"{score[_judged_by(score)]:.1f}"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.last_activity))
        tags = f"  [{', '.join(run.tags)}]" if run.tags else ""
        films = f"  {run.films} film{'s' * (run.films > 1)}" if run.films else ""
        job = f"  {jobs[run.path]}" if run.path in jobs else ""
        state = f"{run.state:<12} {run.steps:>13,} steps  best {best:>9}"
        print(f"{when}  {state}  {run.path}{films}{tags}{job}")
    return 0


class _Job(NamedTuple):
    """A run's Slurm job, and its state if Slurm tells."""

    number: str
    state: str | None

    def __str__(self) -> str:
        return f"job {self.number}" + (f" {self.state}" if self.state else "")


def _jobs(runs: Sequence[RunSummary]) -> dict[Path, _Job]:
    """Of the runs that have one; Slurm is asked once, and only if there are any."""
    noted = {run.path: job.job for run in runs if (job := read_slurm_job(run.path)) and job.job}
    states = states_of(noted.values())
    return {path: _Job(number, states.get(number)) for path, number in noted.items()}


def _judged_by(score: dict[str, Any]) -> str:
    """The mean that the run is judged by."""
    return f"{score.get('score', 'return')}_mean"
