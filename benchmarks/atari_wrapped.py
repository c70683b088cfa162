"""Pong behind gymnasium's own wrappers, for the loops that want one environment at a time."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward

gym.register_envs(ale_py)


def make_pong() -> gym.Env[Any, Any]:
    """Grey 84x84 frames as uint8, four stacked, one step in four frames, rewards by their sign."""
    env: gym.Env[Any, Any] = gym.make(
        "ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, full_action_space=False
    )
    env = AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84)
    env = FrameStackObservation(env, 4)
    return TransformReward(env, lambda reward: float(np.sign(reward)))
