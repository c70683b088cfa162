"""``rookery COMMAND ...``: finds the command and turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import select
import sys
from collections.abc import Sequence
from typing import Any

from rookery.cli.head_start import head_start_of
from rookery.core.errors import UserError, near_names
from rookery.engines.interrupt import exit_code_of

COMMANDS = {
    "train": "train a recipe, an environment or a factory",
    "resume": "go on with a run",
    "join": "act for a run whose head is another machine",
    "slurm": "train on the nodes of a Slurm cluster",
    "eval": "play whole episodes with a trained agent and report the score",
    "watch": "see an agent play, in a window or in the terminal",
    "record": "write a video of an agent",
    "recipes": "list the recipes",
    "runs": "list the runs",
    "plot": "draw the learning curves of runs",
    "zoo": "list the trained agents that come with Rookery, or make such a file",
    "export": "write a policy as an ONNX or torch.export file",
    "doctor": "check this machine and what a run needs of it",
    "autotune": "find the settings that make the most steps a second here",
    "plan": "show who does what before anything starts",
    "import-config": "turn a configuration of MarltasCore into one of ours",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process's exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    _see_modules_here()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        return _dispatch(args)
    except UserError as error:
        print(f"rookery: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        return exit_code_of(error)
    except SystemExit as done:  # argparse after --help
        return int(done.code or 0)
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        return 0


def _nobody_reads() -> bool:
    """Whether the reader of standard output went away, as in `rookery runs | head`."""
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file
        return False
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    gone = any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    return gone


def _see_modules_here() -> None:
    """Look in the current directory too, where people keep ``my_env.py``; console scripts do not.

    Last, so that nothing there stands in for an installed package.
    """
    with contextlib.suppress(FileNotFoundError):  # a directory that was removed
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if args[0] == "--version":
        from rookery import __version__

        print(__version__)
        return 0
    command, rest = args[0], args[1:]
    if command not in COMMANDS:
        raise UserError(f"unknown command '{command}'{near_names(command, COMMANDS)} (see --help)")
    with head_start_of(command, rest):
        code: int = _imported(command).main(rest)
    return code


def _imported(command: str) -> Any:
    """The module of ``command``; to look for garbage meanwhile would take a tenth longer."""
    gc.disable()
    try:
        return importlib.import_module(f"rookery.cli.{command.replace('-', '_')}")
    finally:
        gc.enable()


def _usage() -> str:
    lines = ["usage: rookery COMMAND ...", ""]
    lines += [f"  {name:<13} {about}" for name, about in COMMANDS.items()]
    lines += ["", "rookery COMMAND --help explains a command."]
    return "\n".join(lines)
