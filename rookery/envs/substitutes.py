"""Vector classes of ours for environments that gymnasium only steps one by one.

They are the same environments to the bit; where they would not be (another version of gymnasium,
another compiler's rounding) there is none, and gymnasium's own are stepped. Only training uses
them.
"""

from __future__ import annotations

import importlib
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gymnasium.envs.registration import EnvSpec

if TYPE_CHECKING:
    from rookery.envs.make import EnvConfig

_LOG = logging.getLogger(__name__)

_OURS = {
    "gymnasium.envs.box2d.bipedal_walker:BipedalWalker": (
        "rookery.envs.walker_vector",
        "WalkerVector",
    )
}
"""Module and class, by the entry point of the single environment."""


def vector_class(spec: EnvSpec, config: EnvConfig) -> Callable[..., Any] | None:
    """What makes many of ``spec`` at once as ``config`` says, if we have it and it agrees with the
    single one."""
    name = _OURS.get(str(spec.entry_point))
    if name is None or config.on_env_error == "restart":  # one by one, each can be made anew
        return None
    try:
        module = importlib.import_module(name[0])
    except (ImportError, AttributeError):  # gymnasium's own environment says what to install
        return None
    if not module.agrees():
        _LOG.warning("%s: our vector of it differs here; stepping gymnasium's own", spec.id)
        return None
    found: Callable[..., Any] = getattr(module, name[1])
    given = set(config.kwargs) | set(spec.kwargs)
    return found if given <= set(inspect.signature(found).parameters) else None
