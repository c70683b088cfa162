"""What must be the same on all machines of a run."""

from __future__ import annotations

from collections.abc import Mapping

from rookery.core.errors import UserError
from rookery.runs.directory import package_versions

Versions = Mapping[str, str | None]


def versions_here() -> dict[str, str | None]:
    """Of Rookery, Python and what it computes with."""
    from rookery import __version__

    return {"rookery": __version__} | package_versions()


def check_versions(here: str, mine: Versions, there: str, theirs: Versions) -> None:
    """Refuse to go on ``here``, where ``mine`` are installed, with others than are ``there``."""
    for package, version in theirs.items():
        if mine.get(package) != version:
            raise UserError(
                f"{here} has {package} {mine.get(package)}, and {there} has {version}; install "
                "the same on all nodes"
            )
