"""What `rookery watch` and `rookery record` ask alike."""

from __future__ import annotations

import argparse

from rookery.cli.arguments import Arguments
from rookery.core.errors import UserError


def add_play_arguments(parser: Arguments) -> None:
    """Which agent, from which seed, and how it chooses."""
    parser.add_argument("run", help="run directory, a checkpoint inside one, or zoo:NAME")
    parser.add_argument("--checkpoint", help="best, latest, or its steps (default: best if any)")
    parser.add_argument("--seed", type=int, help="as in `rookery eval` (default: 0)")
    parser.add_argument(
        "--first",
        type=int,
        metavar="N",
        help="begin with the Nth episode of the seed (default: a typical one; with --seed the 1st)",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--deterministic", action="store_true", help="the most likely action")
    mode.add_argument("--stochastic", action="store_true", help="sample actions")


def chosen_first(args: argparse.Namespace) -> int | None:
    """The episode to begin with, counted from 0; None if it was left open."""
    return None if args.first is None else args.first - 1


def chosen_determinism(args: argparse.Namespace) -> bool | None:
    """Whether the most likely action is to be taken; None leaves it to the agent's settings."""
    return True if args.deterministic else False if args.stochastic else None


def at_least(args: argparse.Namespace, **least: int) -> None:
    """Refuse numbers that are too small."""
    for name, low in least.items():
        value = getattr(args, name)
        if value is not None and value < low:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: must be at least {low}, got {value:g}")
