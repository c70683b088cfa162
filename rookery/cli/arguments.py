"""A small argparse parser whose errors are :class:`UserError`, for commands without settings."""

from __future__ import annotations

import argparse
from typing import NoReturn

from rookery.core.errors import UserError


class Arguments(argparse.ArgumentParser):
    """``argparse`` that raises instead of exiting on errors."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as one line."""
        raise UserError(f"{message} (see `{self.prog} --help`)")


def flag_value(text: str) -> float | None:
    """A number, or none."""
    if text in ("none", "null"):
        return None
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number or none") from error


def seconds(text: str) -> float:
    """Seconds, from ``90``, ``90s``, ``15m`` or ``2h``."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        return float(number) * units[unit]
    except ValueError as error:
        raise UserError(f"'{text}' is not a time; write 90, 90s, 15m or 2h") from error
