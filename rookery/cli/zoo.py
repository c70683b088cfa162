"""``rookery zoo``: the trained agents that come with Rookery; ``rookery zoo add`` makes one,
``rookery zoo score`` measures one anew."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.cli.arguments import Arguments
from rookery.cli.outfile import check_out, size_text
from rookery.core.errors import UserError, near_names
from rookery.zoo.bundle import SUFFIX, read_info, write_bundle
from rookery.zoo.catalog import PREFIX, bundle_names, bundle_path, check_name, find_bundle

if TYPE_CHECKING:  # listing does not wait for torch
    from rookery.zoo.score import Packed

ADD, SCORE = "add", "score"


def main(argv: list[str]) -> int:
    """List the bundles, add one, or measure the score of one."""
    if argv[:1] == [ADD]:
        return _add(argv[1:])
    if argv[:1] == [SCORE]:
        return _measure(argv[1:])
    if argv and not argv[0].startswith("-"):
        raise UserError(
            f"unknown word '{argv[0]}'{near_names(argv[0], [ADD, SCORE])}; `rookery zoo` lists "
            "the bundles, `rookery zoo add RUN --name NAME` makes one, `rookery zoo score BUNDLE` "
            "measures one anew"
        )
    parser = Arguments(prog="rookery zoo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="pure JSON on standard output")
    others = (_add_parser(), _measure_parser())
    parser.epilog = " ".join(it.format_usage().removeprefix("usage: ") for it in others)
    args = parser.parse_args(argv)
    bundles = {name: read_info(bundle_path(name)) for name in bundle_names()}
    if args.json:
        print(json.dumps([_row(f"{PREFIX}{name}", info) for name, info in bundles.items()]))
    else:
        print("\n".join(_table(bundles.items())))
    return 0


def _row(source: str, info: dict[str, Any]) -> dict[str, Any]:
    """What there is to know about a bundle, without what only a program needs."""
    training = info["training"]
    return {
        "source": source,
        "name": info["name"],
        "task": info["env"]["id"],
        "score": info["score"],
        "recipe": training["recipe"],
        "steps": training["steps"],
        "secs": training["secs"],
        "bytes": info["bytes"],
        "sha256": info["sha256"],
        "versions": info["versions"],
    }


def _table(bundles: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    head = ("name", "task", "score", "steps", "time", "size")
    rows = [head]
    for name, info in bundles:
        training = info["training"]
        rows.append(
            (
                f"{PREFIX}{name}",
                info["env"]["id"],
                _score_text(info["score"]),
                f"{training['steps']:,}",
                _time_text(training["secs"]),
                size_text(info["bytes"]),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [_line(row, widths) for row in rows]


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    """Words to the left, numbers to the right."""
    cells = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
    cells += [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
    return "  ".join(cells)


def _score_text(score: dict[str, Any]) -> str:
    low, high = score["ci95"]
    return (
        f"{score['by']} {score['mean']:,.1f} (95 % {low:,.1f} to {high:,.1f}, "
        f"{score['episodes']} episodes)"
    )


def _time_text(secs: float) -> str:
    if secs < 120:
        return f"{secs:.0f} s"
    return f"{secs / 60:.0f} min" if secs < 7200 else f"{secs / 3600:.1f} h"


# ---- add ---------------------------------------------------------------------------------------


def _add_parser() -> Arguments:
    about = "Play a run's policy to know its score, and write all it needs into one file."
    parser = Arguments(prog="rookery zoo add", description=about)
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="run directory, or a checkpoint inside one"
    )
    parser.add_argument("--name", required=True, help="what to call it")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help=f"file to write (default: NAME{SUFFIX})"
    )
    parser.add_argument(
        "--episodes", type=int, default=100, help="episodes to judge it by (default: 100)"
    )
    parser.add_argument("--checkpoint", help="best, latest, or its steps (default: best if any)")
    parser.add_argument(
        "--average-since",
        type=int,
        metavar="STEPS",
        help="take the mean of the weights that the run's history kept from this step on",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    return parser


def _add(argv: list[str]) -> int:
    args = _add_parser().parse_args(argv)
    check_name(args.name)
    out: Path = args.out if args.out is not None else Path(f"{args.name}{SUFFIX}")
    check_out(out, [SUFFIX], force=args.force)
    from rookery.zoo.pack import pack

    # Environments may print; standard output is for the result alone.
    with contextlib.redirect_stdout(sys.stderr):
        packed = pack(
            args.run,
            name=args.name,
            episodes=args.episodes,
            checkpoint=args.checkpoint,
            average_since=args.average_since,
        )
    _write(out, packed)
    return 0


# ---- score -------------------------------------------------------------------------------------


def _measure_parser() -> Arguments:
    about = "Play a bundle again and write the score it has here into it; all else stays."
    parser = Arguments(prog="rookery zoo score", description=about)
    parser.add_argument("bundle", metavar="BUNDLE", help="a bundle's file, or zoo:NAME")
    parser.add_argument(
        "--episodes", type=int, help="episodes to judge it by (default: as many as before)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="file to write (default: the bundle itself)"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing --out")
    return parser


def _measure(argv: list[str]) -> int:
    args = _measure_parser().parse_args(argv)
    path = find_bundle(args.bundle)
    if path is None:
        raise UserError(
            f"{args.bundle} is not a bundle; `rookery eval` judges runs, `rookery zoo add` makes "
            "a bundle of one"
        )
    out: Path = path if args.out is None else args.out
    check_out(out, [SUFFIX], force=args.force or args.out is None)
    from rookery.zoo.score import scored_anew

    with contextlib.redirect_stdout(sys.stderr):
        packed = scored_anew(path, args.episodes)
    _write(out, packed)
    return 0


def _write(out: Path, packed: Packed) -> None:
    write_bundle(out, packed.info, packed.arrays)
    info = read_info(out)
    print(f"{out}: {_score_text(info['score'])}, {size_text(info['bytes'])}")
