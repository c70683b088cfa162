"""A head start for the processes of a run, while this one still imports what it needs itself.

The words of the command tell well enough whether there will be any. It is a guess: settings are
read and checked later, and a fork server that nobody took up is ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rookery.cli.arguments import HELP, Words, split_words
from rookery.core.errors import UserError
from rookery.engines.fork_server import head_start
from rookery.engines.launcher import launch_of

_WITHOUT_RUN = {HELP, "print_config"}
"""Switches of commands that start nothing."""


@contextlib.contextmanager
def head_start_of(command: str, argv: Sequence[str]) -> Iterator[None]:
    """Within the block, a fork server is made ready if ``command`` will want one."""
    if command in ("train", "resume") and _engine(command, argv) == "local":
        with head_start():
            yield
    else:
        yield


def _engine(command: str, argv: Sequence[str]) -> str | None:
    """The engine that the words ask for, as far as one can tell."""
    try:
        words = split_words(argv, {"quiet", "plain", "print_config"})
        if words.switches & _WITHOUT_RUN or "seeds" in words.flags:
            return None
        if "listen" in words.flags:
            return "local"
        return words.flags.get("engine") or (_written(command, words) if _alone() else None)
    except (UserError, OSError):
        return None  # the command itself will say so


def _alone() -> bool:
    launch = launch_of()
    return launch is None or launch.size == 1


def _written(command: str, words: Words) -> str | None:
    """The engine of the run, file or recipe that is named."""
    from rookery.recipes.catalog import load_config_file, load_recipe, recipe_names, resolve

    name = words.names[0] if words.names else ""
    trees = []
    if command == "resume":
        trees.append(load_config_file(Path(name) / "config.yaml"))
    if "config" in words.flags:
        trees.append(load_config_file(Path(words.flags["config"])))
    if name in recipe_names():
        trees.append(load_recipe(name))
    sources = (words.flags, *trees)
    formation = next((str(s["formation"]) for s in sources if s.get("formation")), "sync")
    engines = (resolve(tree, formation).get("engine") for tree in trees)
    return next((str(engine) for engine in engines if engine), None)
