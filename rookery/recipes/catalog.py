"""Recipes by name, and how settings are laid over each other.

Precedence: recipe < its block for the chosen formation < ``--config`` < flags. A recipe may hold::

    about: one line for `rookery recipes`
    base: atari                           # what it is laid over: bases/atari.yaml
    formations:
      async: {optimizer: {lr: 1e-4}}      # laid over the rest by --formation async
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rookery.core.errors import UserError, near_names

Tree = dict[str, Any]


def recipe_names() -> list[str]:
    """All recipes."""
    files = resources.files("rookery.recipes").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_recipe(name: str) -> Tree:
    """The settings of a recipe."""
    if name not in recipe_names():
        raise UserError(
            f"unknown recipe '{name}'{near_names(name, recipe_names())} (see `rookery recipes`)"
        )
    tree = _read(f"{name}.yaml")
    base = tree.pop("base", None)
    return tree if base is None else lay_over(_read(f"bases/{base}.yaml"), tree)


def _read(file: str) -> Tree:
    text = resources.files("rookery.recipes").joinpath(file).read_text("utf-8")
    return parse_yaml(text, f"recipe {file}")


def load_config_file(path: Path) -> Tree:
    """The settings of a YAML file of the user's."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UserError(f"--config {path}: {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--config {path}: not a text file; it must be YAML") from error
    return parse_yaml(text, f"--config {path}")


class _Loader(yaml.SafeLoader):
    """YAML 1.2's numbers: ``1e-3`` is a number here, not a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, where: str) -> Tree:
    """A mapping from YAML text."""
    try:
        tree = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # a date such as 2024-13-01
        reason = " ".join(str(error).split())
        raise UserError(f"{where}: not valid YAML: {reason}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise UserError(f"{where}: must be a mapping of settings, got {type(tree).__name__}")
    return tree


def parse_value(text: str) -> Any:
    """One value as it is typed on a command line; text that is not YAML stays text."""
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError):
        return text


def seconds(text: str) -> float:
    """Seconds, from ``90``, ``90s``, ``15m`` or ``2h``."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        return float(number) * units[unit]
    except ValueError as error:
        raise UserError(f"'{text}' is not a time; write 90, 90s, 15m or 2h") from error


def lay_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """``base`` with the values of ``over``, nested mappings merged."""
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping) and not _is_schedule(value):
            out[key] = lay_over(below, value)
        else:
            out[key] = value
    return out


def _is_schedule(value: Mapping[str, Any]) -> bool:
    """A schedule replaces a schedule as a whole; mixing two would make a third nobody wrote."""
    return "until_steps" in value


def resolve(tree: Tree, formation: str) -> Tree:
    """Take the formation's block in, and drop what is not a setting."""
    out = dict(tree)
    out.pop("about", None)
    blocks = out.pop("formations", None) or {}
    if not isinstance(blocks, Mapping) or not isinstance(blocks.get(formation, {}), Mapping):
        raise UserError("formations: must be a mapping of settings for each formation")
    return lay_over(out, blocks.get(formation, {}))
