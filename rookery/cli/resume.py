"""``rookery resume RUN [--steps N] [settings]``: go on with a run."""

from __future__ import annotations

from pathlib import Path

from rookery.cli.arguments import Arguments, flag_value, seconds
from rookery.cli.main import INTERRUPTED
from rookery.cli.progress import Lines
from rookery.runs.directory import RunDirectory
from rookery.runs.session import Callbacks

_KEEP = object()


def main(argv: list[str]) -> int:
    """Resume; 0 when finished or solved, 130 when interrupted."""
    parser = Arguments(prog="rookery resume", description=__doc__)
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--steps", type=int, help="new total of environment steps")
    parser.add_argument("--time-limit", type=seconds, help="new total of training time, e.g. 15m")
    parser.add_argument(
        "--stop-at", type=flag_value, default=_KEEP, help="new score to stop at, or none"
    )
    parser.add_argument("--engine", help="inline or local")
    parser.add_argument("--actors", type=int, help="number of actors")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    args = parser.parse_args(argv)
    lines = Lines(quiet=args.quiet)
    directory = RunDirectory.open(args.run)
    status = directory.read_status()
    if status is not None and status.state == "solved" and args.stop_at is _KEEP:
        lines.say(
            f"{args.run} stopped as solved ({status.reason}); --stop-at none trains it further"
        )
        return 0
    settings = {
        "steps": args.steps,
        "time_limit": args.time_limit,
        "engine": args.engine,
        "actors": args.actors,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    if args.stop_at is not _KEEP:
        settings["stop_at"] = args.stop_at
    from rookery.training import resume

    run = resume(directory.path, callbacks=Callbacks(on_record=[lines.record]), **settings)
    lines.finish(run)
    return INTERRUPTED if run.finish.outcome.state == "interrupted" else 0
