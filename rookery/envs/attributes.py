"""The state of a vector environment that keeps all of it in plain attributes.

Gymnasium's own NumPy vector environments do: arrays, numbers and a random generator. Then the
attributes are the state, and saving them lets a run continue exactly. Those that are named like an
argument of the environment and never changed since it was made are its settings: a run that is
resumed with others has those::

    made = values_of(env)                                # before anything else
    arrays, data = snapshot_attributes(env, made)
    restore_attributes(another, arrays, data, made_of_another)
"""

from __future__ import annotations

import inspect
import types
from enum import Enum
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rookery.core.seeding import generator_state, restore_generator
from rookery.core.spec import Array, Arrays

_CONSTANTS = (gym.Space, EnvSpec, Enum, type, types.FunctionType, types.BuiltinFunctionType)
"""Attributes of these types describe the environment; they do not change as it runs."""


Values = dict[str, Any]


def values_of(env: gym.vector.VectorEnv[Any, Any, Any]) -> Values:
    """What it keeps of its arguments: numbers, names, None."""
    kinds = (bool, int, float, str, np.generic, types.NoneType)
    try:
        arguments, attributes = inspect.signature(type(env)).parameters, vars(env)
    except (TypeError, ValueError):  # written in C++, it shows neither
        return {}
    return {
        name: value
        for name, value in attributes.items()
        if name.strip("_") in arguments and isinstance(value, kinds)
    }


def snapshot_attributes(
    env: gym.vector.VectorEnv[Any, Any, Any], made: Values
) -> tuple[Arrays, dict[str, Any]] | None:
    """Arrays and JSON data of every attribute, or None if one holds what cannot be saved."""
    if env.unwrapped is not env:
        return None
    arrays: Arrays = {}
    plain: dict[str, Any] = {}
    generators: dict[str, Any] = {}
    numbers: list[str] = []
    found: list[Array] = []
    for name, value in vars(env).items():
        if isinstance(value, _CONSTANTS):
            continue
        if isinstance(value, np.random.Generator):
            generators[name] = generator_state(value)
        elif isinstance(value, np.ndarray) and _saved(value):
            if any(np.may_share_memory(value, other) for other in found):
                return None  # a copy of each would no longer be the same memory
            found.append(value)
            arrays[name] = value.copy()
        elif isinstance(value, (float, np.generic)) and _saved(np.asarray(value)):
            arrays[name] = np.asarray(value)
            numbers.append(name)
        elif value is None or isinstance(value, (bool, int, str)):
            plain[name] = value
        else:
            return None
    settings = [name for name, value in values_of(env).items() if _same(made, name, value)]
    return arrays, {
        "plain": plain,
        "generators": generators,
        "numbers": numbers,
        "settings": settings,
    }


def _same(made: Values, name: str, value: Any) -> bool:
    return name in made and type(made[name]) is type(value) and bool(made[name] == value)


def _saved(value: Array) -> bool:
    """Whether a checkpoint can hold it: truths and plain numbers."""
    return value.dtype.kind in "biuf" and value.dtype.itemsize <= 8


def restore_attributes(
    env: gym.vector.VectorEnv[Any, Any, Any], arrays: Arrays, data: dict[str, Any], made: Values
) -> None:
    """Put ``env`` back to what :func:`snapshot_attributes` saw. It must have been reset once."""
    for name, value in data["plain"].items():
        setattr(env, name, value)
    for name, array in arrays.items():
        if name not in data["numbers"]:
            setattr(env, name, array.copy())
        else:
            is_float = isinstance(getattr(env, name, None), float)
            setattr(env, name, array.item() if is_float else array[()])
    for name, state in data["generators"].items():
        restore_generator(getattr(env, name), state)
    for name in data.get("settings", ()):
        if name in made:
            setattr(env, name, made[name])
