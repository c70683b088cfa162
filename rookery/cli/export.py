"""``rookery export RUN --out FILE``: a policy for programs without Rookery.

FILE ends in .onnx (ONNX runtimes) or .pt2 (torch.export). It holds one step of the policy: from the
environment's own observations and the recurrent state to the most likely action, the parameters
of the distribution of actions, the value and the new state.
"""

from __future__ import annotations

from pathlib import Path

from rookery.cli.arguments import Arguments
from rookery.cli.outfile import check_out, size_text

SUFFIXES = (".onnx", ".pt2")


def main(argv: list[str]) -> int:
    """Export, compare and write."""
    parser = Arguments(prog="rookery export", description=__doc__)
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="run directory, a checkpoint inside one, zoo:NAME or a bundle",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="file to write: .onnx or .pt2"
    )
    parser.add_argument("--checkpoint", help="best, latest, or its steps (default: best if any)")
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    args = parser.parse_args(argv)
    out: Path = args.out
    check_out(out, SUFFIXES, force=args.force)
    from rookery.exports.files import check_packages, export
    from rookery.programs.plan import compute_threads
    from rookery.runs.atomic import write_atomic, writing
    from rookery.runs.trained import find_trained

    check_packages(out.suffix)
    trained = find_trained(args.run, args.checkpoint)
    with compute_threads(1):
        exported = export(trained, out.suffix)
    with writing(out, "--out"):
        write_atomic(out, exported.data)
    print(f"{out}: {trained.name} after {trained.steps:,} steps, {size_text(len(exported.data))}")
    for title, leaves in (("inputs", exported.inputs), ("outputs", exported.outputs)):
        print(f"{title}:")
        print("\n".join(f"  {name:<16} {what}" for name, what in leaves.items()))
    print(f"checked: {exported.check}")
    return 0
