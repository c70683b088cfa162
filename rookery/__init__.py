"""Rookery: deep reinforcement learning. One agent, any formation.

::

    import rookery

    run = rookery.train("cartpole", seed=1)
    print(run.evaluate(episodes=20)["return_mean"])
    policy = rookery.load(run.path)
    action, state = policy.act(obs)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rookery.core.errors import EnvironmentFault, RunFailed, StopRun, UserError
from rookery.envs.registration import register as _register

if TYPE_CHECKING:
    from rookery.agent import Agent, load
    from rookery.training import Run, resume, train

__version__ = "0.1.0"
__all__ = [
    "Agent",
    "EnvironmentFault",
    "Run",
    "RunFailed",
    "StopRun",
    "UserError",
    "load",
    "resume",
    "train",
]

_LAZY = {
    "Agent": "rookery.agent",
    "Run": "rookery.training",
    "load": "rookery.agent",
    "resume": "rookery.training",
    "train": "rookery.training",
}

_register()


def __dir__() -> list[str]:
    """What completion offers: also what is imported only when it is used."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import torch and the rest only when they are used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'rookery' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)
