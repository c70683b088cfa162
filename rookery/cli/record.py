"""``rookery record RUN --out FILE``: a video of an agent, and a JSON file with its rewards."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from rookery.cli.arguments import Arguments
from rookery.cli.play_arguments import (
    add_play_arguments,
    at_least,
    chosen_determinism,
    chosen_first,
)
from rookery.core.errors import UserError
from rookery.recipes.catalog import seconds

MAX_STEPS = 2000
MOST_TIMES = 8
MOST_FPS = 240


def main(argv: list[str]) -> int:
    """Write the video."""
    parser = Arguments(prog="rookery record", description=__doc__)
    add_play_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="name of the .mp4 or .gif")
    parser.add_argument("--episodes", type=int, default=1, help="how many (default: 1)")
    parser.add_argument(
        "--max-steps",
        type=int,
        default=MAX_STEPS,
        help=f"cut episodes after this many steps (default: {MAX_STEPS})",
    )
    parser.add_argument("--fps", type=float, help="pictures a second (default: the environment's)")
    parser.add_argument(
        "--at", help="training times such as 0,15m,30m: the agents of then, side by side"
    )
    parser.add_argument(
        "--panel", action="store_true", help="show value and units too (Snake always does)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    args = parser.parse_args(argv)
    at_least(args, episodes=1, max_steps=1, seed=0, first=1)
    if args.fps is not None and not 0 < args.fps <= MOST_FPS:
        raise UserError(f"--fps: must be more than 0 and at most {MOST_FPS}, got {args.fps:g}")
    times = _times(args.at)
    if times and args.checkpoint is not None:
        raise UserError("--at chooses the agents itself; leave --checkpoint out")

    from rookery.play.record import RecordOrder, record

    summary = record(
        RecordOrder(
            source=args.run,
            out=args.out,
            checkpoint=args.checkpoint,
            num_episodes=args.episodes,
            max_steps=args.max_steps,
            fps=args.fps,
            at=times,
            seed=args.seed,
            first=chosen_first(args),
            deterministic=chosen_determinism(args),
            panel=args.panel,
            force=args.force,
        )
    )
    _tell(args.out, summary, args.max_steps)
    return 0


def _times(text: str | None) -> list[float]:
    """Training times in seconds."""
    if text is None:
        return []
    words = [word.strip() for word in text.split(",")]
    try:
        times = [seconds(word) for word in words]
    except UserError as error:
        raise UserError(f"--at: {error}") from error
    if any(not math.isfinite(secs) or secs < 0 for secs in times):
        raise UserError(f"--at: times must not be negative or infinite, got {text}")
    if len(times) > MOST_TIMES:
        raise UserError(f"--at: {len(times)} pictures are too many; give at most {MOST_TIMES}")
    return times


def _shown(score: float | None) -> str:
    return "not a number" if score is None else f"{score:g}"


def _tell(out: Path, summary: dict[str, Any], max_steps: int) -> None:
    if summary["opening"]:
        print(f"{out}: {summary['opening']}", file=sys.stderr)
    for record in summary["episodes"]:
        print(
            f"{out}: episode {record['episode'] + 1}, agent of {record['checkpoint_steps']:,} "
            f"steps, length {record['length']:,}, return {_shown(record['return'])}"
        )
    if any(record["cut"] for record in summary["episodes"]):
        print(f"cut at --max-steps {max_steps}", file=sys.stderr)
