"""Environments that can be drawn: which ways they know, and one made for a way.

::

    env = make_drawn(config, choose_mode(config, ("rgb_array",)))
    env.reset(seed=0)
    frame = draw(env, config.id)            # [height, width, 3] or text
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rookery.core.errors import UserError
from rookery.core.spec import Array
from rookery.envs import faults
from rookery.envs.make import EnvConfig, make_env

PICTURE, TEXT = "rgb_array", "ansi"
DEFAULT_FPS = 30.0

AnyEnv = gym.Env[Any, Any]
Frame = Array | str


def render_modes(config: EnvConfig) -> tuple[str, ...]:
    """The ways in which an environment can be drawn, as it says itself."""
    env = make_env(config)
    try:
        return tuple((env.metadata or {}).get("render_modes") or ())
    finally:
        env.close()


def choose_mode(config: EnvConfig, wanted: Sequence[str]) -> str:
    """The first of ``wanted`` that the environment has."""
    modes = render_modes(config)
    for mode in wanted:
        if mode in modes:
            return mode
    has = f"its render modes are {', '.join(modes)}" if modes else "it has no render modes"
    raise UserError(
        f"{config.id} cannot be drawn: {has}; {' or '.join(wanted)} is needed "
        "(`rookery eval` plays without drawing)"
    )


def make_drawn(config: EnvConfig, mode: str) -> AnyEnv:
    """The environment, made to be drawn in ``mode``."""
    try:
        return make_env(config, render_mode=mode)
    except UserError as error:
        if "render_mode" not in str(error):
            raise
        raise UserError(
            f"{config.id} cannot be drawn: what makes it takes no render_mode; "
            "give the factory that argument and hand it on to the environment"
        ) from error


def fps_of(env: AnyEnv) -> float:
    """How many steps a second look natural, as the environment says."""
    fps = (env.metadata or {}).get("render_fps")
    return float(fps) if isinstance(fps, (int, float)) and fps > 0 else DEFAULT_FPS


def draw(env: AnyEnv, name: str) -> Frame:
    """The environment's picture ``[height, width, 3]`` of bytes, or its text."""
    try:
        frame: Any = env.render()
    except Exception as error:
        raise faults.raised(name, "drawn", "render", error, "fix its render method") from error
    if isinstance(frame, str):
        return frame
    if hasattr(frame, "getvalue"):  # gymnasium's toy texts may hand out a StringIO
        return str(frame.getvalue())
    picture = np.asarray(frame)
    if picture.ndim == 2 and picture.dtype == np.uint8:
        picture = picture[:, :, None]
    if picture.ndim != 3 or picture.dtype != np.uint8 or not picture.size:
        what = type(frame).__name__ if picture.ndim != 3 else f"{picture.dtype}{picture.shape}"
        raise faults.wrong(
            name, "drawn", "render", f"it should be uint8[height, width, 3], it is {what}", _FIX
        )
    return np.ascontiguousarray(np.repeat(picture, 3, 2) if picture.shape[2] < 3 else picture)[
        :, :, :3
    ]


_FIX = "fix its render method"
