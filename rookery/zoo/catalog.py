"""Bundles by name: ``zoo:cartpole`` is a bundle that comes with Rookery.

::

    path = find_bundle("zoo:cartpole")          # or a file of one's own, my.safetensors
    if path is None: ...                        # something else: a run, a checkpoint
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from rookery.core.errors import UserError, near_names
from rookery.zoo.bundle import SUFFIX

PREFIX = "zoo:"

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


def bundle_names() -> list[str]:
    """The bundles that come with Rookery."""
    return sorted(path.stem for path in _directory().glob(f"*{SUFFIX}"))


def bundle_path(name: str) -> Path:
    """The file of a bundle that comes with Rookery."""
    names = bundle_names()
    if name not in names:
        hint = near_names(name, names) or f"; there are {', '.join(names) or 'none'}"
        raise UserError(f"the zoo has no '{name}'{hint} (see `rookery zoo`)")
    return _directory() / f"{name}{SUFFIX}"


def check_name(name: str) -> None:
    """Refuse what cannot be written as ``zoo:NAME`` and as the name of a file everywhere."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"--name {name}: use lower-case letters, digits, '-', '_' and '.', as in cartpole-small"
        )


def find_bundle(source: str | Path) -> Path | None:
    """The bundle that ``zoo:NAME`` or the name of a safetensors file means; None if neither."""
    text = str(source)
    if text.startswith(PREFIX):
        return bundle_path(text.removeprefix(PREFIX))
    path = Path(source)
    if path.suffix != SUFFIX or path.is_dir():
        return None
    if not path.exists():
        raise UserError(f"{path} does not exist; give a bundle, or zoo:NAME (see `rookery zoo`)")
    return path


def _directory() -> Path:
    return Path(str(resources.files("rookery.zoo")))
