"""Errors a user can act on: one clear line and an exit code, never a traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager


class UserError(Exception):
    """What was wrong, where, and what to do, in one line. The command line prints it."""

    exit_code = 2


class EnvironmentFault(UserError):  # noqa: N818 - a fault of the environment, not of ours
    """User code in an environment raised, hung, or returned what its spaces do not allow."""

    exit_code = 3


class RunFailed(UserError):  # noqa: N818 - says what happened
    """A run ended because a role could not go on; the message names role, cause and log."""

    exit_code = 4


class StateLost(RunFailed):
    """What a replica held is gone with the one before it; all must go back to a checkpoint."""


def near_names(
    name: str,
    known: Iterable[str],
    shown: Mapping[str, str] | None = None,
    *,
    likeness: float = 0.6,
) -> str:
    """A phrase like ``; did you mean 'cartpole'?`` for the nearest known names, or ``''``.

    ``shown`` says how each is written where that differs; ``likeness`` is between 0 and 1.
    """
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=likeness)
    if not close:
        return ""
    words = (match if shown is None else shown[match] for match in close)
    return "; did you mean " + " or ".join(f"'{word}'" for word in words) + "?"


@contextmanager
def naming(**blocks: str) -> Iterator[None]:
    """Components call themselves algo and formation; people know them by the names of ``blocks``:
    within ``naming(algo="ppo")`` a refusal of algo.gamma is one of ppo.gamma."""
    try:
        yield
    except UserError as error:
        text = str(error)
        for component, block in blocks.items():
            text = re.sub(rf"(?<![\w./]){component}\.(?=\w)", f"{block}.", text)
        error.args = (text,)
        raise


class StopRun(Exception):  # noqa: N818 - a request, not an error
    """Raise it in a callback to end the run properly, with a checkpoint."""
