"""``rookery import-config FILE``: a configuration of MarltasCore as a file for ``--config``."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from rookery.cli.arguments import Arguments
from rookery.cli.outfile import check_out
from rookery.core.errors import UserError
from rookery.recipes.catalog import parse_yaml
from rookery.recipes.marltascore import STEPS_PER_UPDATE, translate
from rookery.recipes.settings import config_from_tree
from rookery.runs.atomic import write_atomic, writing

SUFFIXES = (".yaml", ".yml")


def main(argv: list[str]) -> int:
    """Print or write the settings; what has no counterpart goes to standard error."""
    args = _parser().parse_args(argv)
    if args.out is not None:
        check_out(args.out, SUFFIXES, force=args.force)
    if args.steps_per_update is not None and args.steps_per_update <= 0:
        raise UserError(f"--steps-per-update: must be positive, got {args.steps_per_update:g}")
    imported = translate(
        parse_yaml(_read(args.file), str(args.file)),
        str(args.file),
        algo=args.algo,
        steps_per_update=args.steps_per_update,
    )
    config_from_tree(imported.tree)  # refuses values that make no run
    for key, why in imported.left_out.items():
        print(f"left out {key}: {why}", file=sys.stderr)
    for note in imported.notes:
        print(f"note: {note}", file=sys.stderr)
    text = yaml.safe_dump(imported.tree, sort_keys=False, default_flow_style=None)
    if args.out is None:
        print(text, end="")
    else:
        with writing(args.out, "--out"):
            write_atomic(args.out, text.encode())
        print(f"{args.out}: `rookery train --config {args.out}` trains it", file=sys.stderr)
    return 0


def _parser() -> Arguments:
    parser = Arguments(prog="rookery import-config", description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="a YAML file of MarltasCore")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: standard output)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument(
        "--algo",
        choices=("dqn", "r2d2"),
        help="dqn for its CNN training, r2d2 for its RNN training (default: by the keys)",
    )
    parser.add_argument(
        "--steps-per-update",
        type=float,
        metavar="N",
        help=f"environment steps for each update (default: {STEPS_PER_UPDATE:g}; a synchronous "
        "training says it itself)",
    )
    return parser


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file; it must be YAML") from error
