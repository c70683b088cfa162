"""Whether a recipe would start here: its environment, device, sinks and program."""

from __future__ import annotations

from collections.abc import Iterator

from rookery.core.errors import UserError
from rookery.doctor.finding import Finding, Wanted, ok, problem


def starts(wanted: Wanted) -> Iterator[Finding]:
    """What `rookery train` would refuse before it begins."""
    config = wanted.config
    if config is None:
        return
    from rookery.training import check

    name = config.recipe or config.env.id
    try:
        check(config)
    except UserError as error:
        what, _, remedy = str(error).partition("; ")
        yield problem(name, what, remedy or "see `rookery train --help`")
        return
    yield ok(name, f"{config.algo}, {config.formation} on {config.engine}: would start")
