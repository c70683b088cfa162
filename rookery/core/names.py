"""Objects by name: ``package.module:attribute``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rookery.core.errors import UserError, near_names


def load_object(name: str, what: str) -> Any:
    """Import ``package.module:attribute``; ``what`` names the setting in error messages."""
    module_name, _, attribute = name.partition(":")
    if not (module_name and attribute) or module_name.startswith("."):
        raise UserError(f"{what}: '{name}' is not of the form package.module:attribute")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(
                f"{what}: importing '{module_name}' failed: {error}; install that module"
            ) from error
        raise UserError(
            f"{what}: no module named '{module_name}' (from '{name}'); "
            "it must be importable from here: check the spelling or set PYTHONPATH"
        ) from error
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise UserError(
            f"{what}: module '{module_name}' has no '{attribute}'{near_names(attribute, public)}"
        )
    return getattr(module, attribute)


def load_class(name: str, ours: Mapping[str, str], flag: str, base: type, made_from: str) -> Any:
    """The class called ``name``: one of ``ours``, or ``package.module:Class`` of a user's.

    It names the dataclass of its settings as ``Config``, which is made from ``base``.
    """
    if ":" not in name and name not in ours:
        raise UserError(
            f"{flag}: unknown '{name}'{near_names(name, ours)} "
            f"(one of {', '.join(sorted(ours))}, or package.module:Class)"
        )
    found = load_object(ours.get(name, name), flag)
    config = getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, base)):
        raise UserError(
            f"{flag}: {name} needs a class attribute Config, a dataclass made from {made_from}"
        )
    return found
