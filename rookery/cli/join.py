"""``rookery join HOST:PORT [--actors N | --role NAME]``: work for a run whose head is another
machine.

``rookery join --run DIR`` finds it by the run's directory.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rookery.cli.arguments import HELP, split_words
from rookery.core.errors import UserError, near_names
from rookery.recipes.catalog import seconds

if TYPE_CHECKING:
    from rookery.engines.host import Way, WayByRun

PROG = "rookery join"
FLAGS = {
    "run": "DIR: the run's directory as this machine sees it; without HOST:PORT, where to find it",
    "actors": "N: how many act here, a process each; default: the cores of this machine",
    "role": "NAME: instead of actors, a role that the head leaves to hosts, as evaluator",
    "token": "TOKEN: as the head has printed it",
    "token_file": "FILE: which holds the token; ROOKERY_TOKEN in the environment works too",
    "fingerprint": "sha256:...: of the head's certificate, as the head has printed it",
    "authority": "FILE: instead of a fingerprint, a PEM file of who signed the certificate",
    "give_up_after": "TIME: how long to try to reach the head (10m)",
    "logs": "DIR: where the actors' logs go; default: runs/RUN-joined-HOST-PID",
}

_SAID_BY_RUN = ("token", "token_file", "fingerprint", "authority")
"""Flags that go with HOST:PORT."""


def main(argv: list[str]) -> int:
    """Join; 0 when the run is over, 130 when interrupted."""
    words = split_words(argv, {"quiet"})
    if HELP in words.switches:
        print(_help())
        return 0
    address = words.one_name(PROG)
    if address is None and "run" not in words.flags:
        raise UserError("join what? give the HOST:PORT that the head has printed")
    for flag in words.flags:
        if flag not in FLAGS:
            hint = near_names(flag, FLAGS) or f" (see `{PROG} --help`)"
            raise UserError(f"unknown flag --{flag.replace('_', '-')}{hint}")
    flags = words.flags
    if "token" in flags:
        _hide(flags["token"], address or "")
    role = flags.get("role", "")
    num_actors = 1 if role and "actors" not in flags else _number(flags.get("actors"))
    from rookery.engines.fork_server import ForkServer
    from rookery.engines.host import Joining, take_part

    way = _way(address, flags)
    quiet = "quiet" in words.switches
    joining = Joining(
        way=way,
        num_actors=num_actors,
        role=role,
        directory=_path(flags, "run"),
        give_up_secs=seconds(flags.get("give_up_after", "10m")),
        logs=_path(flags, "logs"),
        say=(lambda text: None) if quiet else _say,
    )
    with ForkServer() as server:
        return take_part(joining, server)


def _way(address: str | None, flags: dict[str, str]) -> Way | WayByRun:
    """To the head at ``address``, or to that of ``--run``."""
    from rookery.engines.host import Way, WayByRun, token_of

    directory = _path(flags, "run")
    if directory is not None and not directory.is_dir():
        raise UserError(f"--run {directory}: this machine sees no such directory; check the path")
    if address is not None:
        token = token_of(flags.get("token"), _path(flags, "token_file"))
        return Way(address, token, flags.get("fingerprint"), _path(flags, "authority"))
    assert directory is not None
    told = [flag for flag in _SAID_BY_RUN if flag in flags]
    if told:
        given = f"--{told[0].replace('_', '-')}"
        raise UserError(f"--run {directory} says that already; leave {given} out")
    return WayByRun(directory)


def _path(flags: dict[str, str], name: str) -> Path | None:
    return Path(flags[name]) if name in flags else None


def _number(text: str | None) -> int:
    if text is None:
        return len(os.sched_getaffinity(0))
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--actors: must be at least 1, got {text}")
    return int(text)


def _hide(token: str, address: str) -> None:
    """Whoever lists the processes of this machine must not see the token."""
    import setproctitle

    if any(token in word for word in sys.argv):
        setproctitle.setproctitle(f"{PROG} {address}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _help() -> str:
    lines = [
        f"usage: {PROG} HOST:PORT|--run DIR [flags]",
        "",
        "Works for a run that was started with `rookery train ... --listen HOST:PORT` elsewhere.",
    ]
    lines += [f"  --{name.replace('_', '-'):<17} {about}" for name, about in FLAGS.items()]
    lines += ["  --help              print this, and exit"]
    return "\n".join([*lines, "  --quiet             print nothing but errors"])
