"""Environments of packages that an extra of Rookery brings, known by how their ids begin."""

from __future__ import annotations

import importlib
import sys
import types
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from rookery.core.errors import UserError
from rookery.core.names import load_object
from rookery.envs.faults import one_line


@dataclass(frozen=True, slots=True)
class Extra:
    """Where some ids come from."""

    package: str
    """What must be installed; ``rookery[package]`` brings it."""
    register: str | None = None
    """``module:function`` that tells gymnasium of the ids; None: importing the package does."""
    wrapper: str | None = None
    """``module:Class`` that every such environment needs to keep our promises."""
    seldom: tuple[str, ...] = ()
    """Modules that the package imports and hardly ever uses; they are loaded when it does."""


_MINIGRID = Extra("minigrid")
EXTRAS = {
    "MinAtar/": Extra(
        "minatar",
        register="minatar.gym:register_envs",
        wrapper="rookery.envs.minatar:Game",
        seldom=("matplotlib.pyplot", "seaborn"),  # seconds, to draw a window
    ),
    "MiniGrid-": _MINIGRID,
    "BabyAI-": _MINIGRID,
}
"""By how ids begin."""


def extra_of(env_id: str) -> Extra | None:
    """The extra that an id without its module belongs to, if it does."""
    return next((extra for begin, extra in EXTRAS.items() if env_id.startswith(begin)), None)


def register(env_id: str) -> None:
    """Let gymnasium know the ids that ``env_id`` is one of, or say what to install."""
    extra = extra_of(env_id)
    if extra is None or any(extra_of(known) is extra for known in gym.registry):
        return
    try:
        for module in extra.seldom:
            sys.modules.setdefault(module, _Later(module))
        importlib.import_module(extra.package)
        if extra.register is not None:
            load_object(extra.register, f"env.id={env_id}")()
    except ImportError as error:
        raise missing(f"env.id={env_id}", extra.package, extra.package, error) from error


def missing(what: str, package: str, extra: str, error: Exception) -> UserError:
    """What to install so that ``what`` can be had, whose ``package`` could not be imported."""
    return UserError(
        f"{what} needs the package {package} ({one_line(error)}); "
        f'pip install "rookery[{extra}]" brings it'
    )


class _Later(types.ModuleType):
    """Stands for a module until something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def wrapped(env_id: str, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """``env`` in the wrapper of its extra, if that has one."""
    extra = extra_of(env_id)
    if extra is None or extra.wrapper is None:
        return env
    found: gym.Env[Any, Any] = load_object(extra.wrapper, f"env.id={env_id}")(env)
    return found
