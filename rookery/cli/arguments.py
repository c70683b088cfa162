"""Words of a command line: what is a name, what a flag, and what a switch.

Every flag takes one value, written ``--name VALUE`` or ``--name=VALUE``; dashes and underscores are
the same. The names that stand alone (``--quiet``) are switches; some flags alone mean true.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NoReturn

from rookery.core.errors import UserError, near_names

HELP = "help"
TRUE_ALONE = ("eval_after_limit", "stretch_schedules", "threads")
"""Flags of settings that need no value to be true."""


class Arguments(argparse.ArgumentParser):
    """``argparse`` for commands without settings; it raises :class:`UserError` on errors."""

    def __init__(self, *, prog: str, description: str | None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise the message as one line, with near names for an unknown flag."""
        head, _, unknown = message.partition("unrecognized arguments: ")
        hint = ""
        if not head and unknown:
            hint = near_names(unknown.split()[0], self._option_string_actions)
        raise UserError(f"{message}{hint} (see `{self.prog} --help`)")


@dataclass(slots=True)
class Words:
    """A command line taken apart; flags without their dashes, underscores inside."""

    names: list[str] = field(default_factory=list)
    flags: dict[str, str] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)

    def one_name(self, command: str) -> str | None:
        """The only name given, if any."""
        if len(self.names) > 1:
            raise UserError(
                f"{command}: '{self.names[1]}' is one word too many after '{self.names[0]}'; "
                "settings are given as --name VALUE"
            )
        return self.names[0] if self.names else None

    def take(self, flag: str) -> str | None:
        """The value of ``flag``, which is then no longer among the flags."""
        return self.flags.pop(flag, None)


def split_words(argv: Sequence[str], switches: Collection[str] = ()) -> Words:
    """Take ``argv`` apart; ``switches`` (and help) take no value, every other flag takes one."""
    words = Words()
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        if word in ("-h", f"--{HELP}"):
            words.switches.add(HELP)
        elif not word.startswith("-"):
            words.names.append(word)
        else:
            name, equals, value = word.partition("=")
            flag = name.removeprefix("--").replace("-", "_")
            if flag in switches and not equals:
                words.switches.add(flag)
            elif flag in TRUE_ALONE and not equals and rest[-1:] not in (["true"], ["false"]):
                words.flags[flag] = "true"
            else:
                words.flags[flag] = _value(name, value if equals else rest.pop() if rest else None)
    return words


def without_section(argv: Sequence[str], section: str) -> tuple[list[str], dict[str, str]]:
    """``argv`` without the flags of ``section``, such as ``--env.id VALUE``, and those flags."""
    others: list[str] = []
    taken: list[str] = []
    rest = iter(argv)
    for word in rest:
        if not word.startswith(f"--{section}."):
            others.append(word)
        else:
            taken += [word] if "=" in word else [word, *islice(rest, 1)]
    return others, split_words(taken).flags


def _value(name: str, value: str | None) -> str:
    if not name.startswith("--"):
        raise UserError(f"unknown flag {name}; flags begin with two dashes (see --help)")
    if not value or value.startswith("--"):
        raise UserError(f"{name}: give it a value")
    return value
