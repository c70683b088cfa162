"""Settings by their paths, such as ``optimizer.lr``."""

from __future__ import annotations

from typing import Any


def flat_settings(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Every setting of ``tree`` by its path; a schedule is one setting."""
    if not isinstance(tree, dict) or not tree or "until_steps" in tree:
        return {prefix.removesuffix("."): tree} if prefix else {}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flat_settings(value, f"{prefix}{key}.")
    return flat
