"""``rookery plot RUN...``: learning curves of runs as a picture.

RUN is a run directory, or a directory of runs such as `rookery train --seeds` makes. Runs that
differ only in their seed become one curve with a band.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rookery.cli.arguments import Arguments
from rookery.cli.outfile import check_out
from rookery.core.errors import UserError
from rookery.runs.curves import BAND_KINDS, X_AXES

PROG = "rookery plot"


def main(argv: list[str]) -> int:
    """Draw the curves and print the picture's path."""
    args = _parser().parse_args(argv)
    from rookery.runs.curve_picture import Wanted, compose
    from rookery.runs.plotting import SUFFIXES, save

    if args.out is not None:
        check_out(args.out, SUFFIXES, force=args.force)
    elif len(args.runs) > 1:
        raise UserError(
            "where to? give --out FILE.png; without it a picture goes into plots/ of a single RUN"
        )
    wanted = Wanted(
        x=args.x,
        y=args.y,
        smooth=_smooth(args.smooth),
        band=args.band,
        group=args.group,
        title=args.title,
        labels=None if args.labels is None else [word.strip() for word in args.labels.split(",")],
    )
    composed = compose(args.runs, wanted)
    for path in composed.left_out:
        print(f"left out, nothing to draw yet: {path}", file=sys.stderr)
    out = args.out or args.runs[0] / "plots" / f"{composed.stem}.png"
    save(composed.picture, out)
    print(out)
    return 0


def _parser() -> Arguments:
    parser = Arguments(prog=PROG, description=__doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run, or directory of runs"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="picture to write: .png, .svg or .pdf (default: plots/<y>.png in a single RUN)",
    )
    parser.add_argument("--x", choices=X_AXES, default="steps", help="steps, or time of training")
    parser.add_argument(
        "--y",
        metavar="KEY",
        help="metric: return, length, loss, q (mean value of the actions), or a name in "
        "metrics.jsonl such as train/entropy; several with commas between: a panel each; "
        "overview: return, length, loss and value; with --x wall highest returns, steps a second, "
        "who acts and how stale gradients were too "
        "(default: return, or length where runs are judged by it)",
    )
    parser.add_argument(
        "--smooth",
        default="auto",
        metavar="N",
        help="mean over N records; 1: as recorded (default: auto, a 25th of the records)",
    )
    parser.add_argument(
        "--band",
        choices=BAND_KINDS,
        default="range",
        help="over seeds: mean with lowest to highest, mean with standard deviation, "
        "or interquartile mean with quartiles (default: range)",
    )
    parser.add_argument("--title", help="default: the environment")
    parser.add_argument("--labels", metavar="A,B", help="names of the curves, in the order of RUN")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--group",
        action="store_true",
        default=True,
        help="runs that differ only in their seed are one curve (default)",
    )
    group.add_argument(
        "--no-group", dest="group", action="store_false", help="a curve for each run"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing --out")
    return parser


def _smooth(text: str) -> int | None:
    """A number of records; None for auto."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--smooth: '{text}' is no number of records; give 1 or more, or auto")
    if int(text) % 2 == 0:
        raise UserError(f"--smooth: {text} records have no middle; give {int(text) + 1}")
    return int(text)
