"""``rookery eval RUN [--env.NAME VALUE ...]``: play whole episodes and report the raw score.

Settings of the environment, such as ``--env.id ALE/Pong-v5``, judge an agent elsewhere than where
it was trained.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rookery.cli.arguments import Arguments, without_section
from rookery.cli.progress import can_draw


def main(argv: list[str]) -> int:
    """Evaluate and print."""
    parser = Arguments(prog="rookery eval", description=__doc__)
    parser.add_argument(
        "run", type=Path, help="run directory, a checkpoint inside one, zoo:NAME or a bundle"
    )
    parser.add_argument("--episodes", type=int, default=20, help="how many (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="first of one seed per episode")
    parser.add_argument("--max-steps", type=int, help="cut episodes after this many; 0: none")
    parser.add_argument("--checkpoint", help="best, latest, or its steps (default: best if any)")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--deterministic", action="store_true", help="the most likely action")
    mode.add_argument("--stochastic", action="store_true", help="sample actions")
    parser.add_argument("--json", action="store_true", help="pure JSON on standard output")
    others, elsewhere = without_section(argv, "env")
    args = parser.parse_args(others)
    chosen = True if args.deterministic else False if args.stochastic else None
    from rookery.recipes.settings import env_of_flags
    from rookery.training import evaluate_run

    # Environments may print; standard output is for the result alone.
    with contextlib.redirect_stdout(sys.stderr):
        summary = evaluate_run(
            args.run,
            args.episodes,
            seed=args.seed,
            deterministic=chosen,
            max_steps=args.max_steps,
            checkpoint=args.checkpoint,
            env=env_of_flags(elsewhere),
            on_episodes=_progress(args.episodes),
        )
    action = "most likely action" if summary["deterministic"] else "sampled actions"
    print(f"checkpoint {summary['checkpoint_steps']}, {action}", file=sys.stderr)
    print(json.dumps(summary) if args.json else _text(summary))
    if summary["info_means"] and not args.json:
        told = (f"{key} {mean:,.4g}" for key, mean in summary["info_means"].items())
        print("means: " + ", ".join(told))
    return 0


def _progress(episodes: int) -> Callable[[int], None]:
    """Shows on a terminal how many episodes have been played; the line is gone at the end."""

    def show(num_over: int) -> None:
        text = f"{num_over} of {episodes} episodes" if num_over < episodes else "\033[K"
        print(f"\r{text}", end="\r", file=sys.stderr, flush=True)

    return show if can_draw() else lambda num_over: None


def _text(summary: dict[str, Any]) -> str:
    """The score that the agent is judged by first."""
    if summary["by"] == "length" and summary["length_ci95"] is not None:
        low, high = summary["length_ci95"]
        return (
            f"length {summary['length_mean']:.2f} (95 % interval {low:.2f} to {high:.2f}, "
            f"deviation {summary['length_std']:.2f}) over {summary['episodes']} episodes of "
            f"return {summary['return_mean']:.2f}"
        )
    if summary["return_ci95"] is None:
        of = f"one episode of {summary['length_mean']:.0f} steps, too few for an interval"
        return f"return {summary['return_mean']:.2f} in {of}"
    low, high = summary["return_ci95"]
    return (
        f"return {summary['return_mean']:.2f} (95 % interval {low:.2f} to {high:.2f}, "
        f"deviation {summary['return_std']:.2f}) over {summary['episodes']} episodes of "
        f"{summary['length_mean']:.1f} steps"
    )
