"""``rookery watch RUN``: see an agent play, in a window or in the terminal."""

from __future__ import annotations

import math

from rookery.cli.arguments import Arguments
from rookery.cli.play_arguments import (
    add_play_arguments,
    at_least,
    chosen_determinism,
    chosen_first,
)
from rookery.core.errors import UserError


def main(argv: list[str]) -> int:
    """Play until the watcher quits."""
    parser = Arguments(prog="rookery watch", description=__doc__)
    add_play_arguments(parser)
    parser.add_argument("--episodes", type=int, help="end after so many (default: when you quit)")
    parser.add_argument("--max-steps", type=int, help="cut episodes after this many steps")
    parser.add_argument("--speed", type=float, default=1.0, help="times the natural speed")
    parser.add_argument("--ansi", action="store_true", help="draw in the terminal")
    args = parser.parse_args(argv)
    at_least(args, episodes=1, max_steps=1, seed=0, first=1)
    if not 0 < args.speed < math.inf:
        raise UserError(f"--speed: must be more than 0, got {args.speed:g}")

    from rookery.play.watch import watch_agent
    from rookery.runs.trained import find_trained

    watch_agent(
        find_trained(args.run, args.checkpoint),
        in_terminal=args.ansi,
        speed=args.speed,
        num_episodes=args.episodes,
        seed=args.seed,
        first=chosen_first(args),
        deterministic=chosen_determinism(args),
        max_steps=args.max_steps,
    )
    return 0
