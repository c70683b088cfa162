"""Atari games as most papers play them: 84x84 grey frames, four stacked, each action for four.

Which ids are meant, their settings, and the single environment. Its vector of many is
:class:`rookery.envs.atari_vector.AtariVector`; both are the same task, to the pixel::

    game = game_of(gym.spec("ALE/Pong-v5"))
    env = make_game(game, AtariConfig(), max_steps=27_000, render_mode="rgb_array")
    obs, info = env.reset(seed=1)                # uint8 [4, 84, 84], oldest frame first
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from rookery.core.errors import UserError

_PREPARED = re.compile(r"^ALE/\w+-v5$|^\w+NoFrameskip-v[04]$")
_ENTRY_POINT = "ale_py.env:AtariEnv"
_FRAMES_PER_SEC = 60
_RAW = "env.atari.preprocess=false gives gymnasium's own environment"
_INSTEAD = {
    "frameskip": "env.atari.frame_skip",
    "repeat_action_probability": "env.atari.sticky",
    "full_action_space": "env.atari.full_action_space",
    "max_num_frames_per_episode": "env.atari.max_frames",
    "max_episode_steps": "env.max_episode_steps",
}
"""The settings that do what these arguments of ale_py's environment do."""


@dataclass(frozen=True, kw_only=True)
class AtariConfig:
    """How Atari games (ALE/*-v5, *NoFrameskip-v4) are prepared when env.wrappers is empty."""

    preprocess: bool = True
    """Prepare frames as below; false: the environment as gymnasium has it."""
    sticky: float | None = None
    """Probability, in each frame, that the game sees the action before instead; null: that of the
    id, 0.25 for ALE/*-v5 and 0 for *NoFrameskip-v4."""
    noop_max: int = 30
    """A game begins with fewer frames without action than this, how many is random; 0: none."""
    fire_reset: bool = True
    """Press FIRE for one frame when a game begins, if it has that action."""
    life_loss: bool = False
    """To the learner, a lost life ends an episode; recorded returns and evaluation are of whole
    games all the same."""
    frame_skip: int = 4
    """Frames in which an action is repeated; the last two are seen, pixel by pixel the brighter."""
    stack: int = 4
    """Frames in one observation; those before a game began are black."""
    screen_size: int = 84
    """Height and width of a frame in pixels."""
    full_action_space: bool = False
    """All 18 actions of the joystick; false: those that do something in this game."""
    max_frames: int = 108_000
    """Truncate a game after this many frames (half an hour of play)."""
    num_threads: int = 1
    """C++ threads that step the games of one actor, or of each half (env.halves)."""

    def __post_init__(self) -> None:
        if self.sticky is not None and not 0.0 <= self.sticky <= 1.0:
            raise UserError(f"env.atari.sticky is {self.sticky}; it must be between 0 and 1")
        if self.noop_max < 0:
            raise UserError(f"env.atari.noop_max is {self.noop_max}; it must not be negative")
        for name in ("frame_skip", "stack", "screen_size", "max_frames", "num_threads"):
            value = getattr(self, name)
            if value < 1:
                raise UserError(f"env.atari.{name} is {value}; it must be at least 1")

    def max_steps(self, limit: int | None) -> int:
        """Steps until a game is truncated; ``limit`` is ``env.max_episode_steps``."""
        steps = -(-self.max_frames // self.frame_skip)
        return steps if limit is None else min(steps, limit)

    def changed(self) -> list[str]:
        """Names of the settings that ask for more than perhaps the raw environment."""
        return [
            setting.name
            for setting in fields(self)
            if setting.name != "preprocess" and getattr(self, setting.name) != setting.default
        ]


@dataclass(frozen=True, slots=True)
class Game:
    """One game under one of its ids."""

    id: str
    rom: str
    sticky: float
    """What the id stands for; ``AtariConfig.sticky`` overrules it."""

    def sticky_under(self, config: AtariConfig) -> float:
        """The probability that an action is repeated."""
        return self.sticky if config.sticky is None else config.sticky


def may_be_game(env_id: str) -> bool:
    """Whether ``env_id`` is written as a game's is, so that ale_py may know it."""
    return env_id.startswith("ALE/") or _PREPARED.match(env_id) is not None


def game_of(spec: EnvSpec) -> Game | None:
    """The game that ``spec`` stands for; None if it is none, or one of ids nobody prepares."""
    if spec.entry_point != _ENTRY_POINT or not _PREPARED.match(spec.id):
        return None
    return Game(spec.id, spec.kwargs["game"], spec.kwargs["repeat_action_probability"])


def require_kwargs(game: Game, kwargs: Mapping[str, Any]) -> None:
    """Refuse ``env.kwargs``: what they change, preprocessing decides or its vector cannot do."""
    for name in kwargs:
        remedy = f"set {_INSTEAD[name]}, or " if name in _INSTEAD else ""
        raise UserError(
            f"env.kwargs.{name} cannot be had with the preprocessing of {game.id}; {remedy}{_RAW}"
        )


def make_game(
    game: Game, config: AtariConfig, *, max_steps: int, render_mode: str | None = None
) -> gym.Env[Any, Any]:
    """One environment of ``game``, which plays whole games whatever ``life_loss`` says."""
    env: gym.Env[Any, Any] = gym.make(
        game.id,
        disable_env_checker=True,
        frameskip=1,
        repeat_action_probability=game.sticky_under(config),
        full_action_space=config.full_action_space,
        max_num_frames_per_episode=None,
        render_mode=render_mode,
    )
    env = GameStart(env, config)
    env = AtariPreprocessing(
        env, noop_max=0, frame_skip=config.frame_skip, screen_size=config.screen_size
    )
    env = TimeLimit(env, max_steps)
    return FrameStackObservation(env, config.stack, padding_type="zero")


class GameStart(gym.Wrapper[Any, Any, Any, Any]):
    """Begins each game as ALE's vector does: frames without action, then FIRE.

    Gymnasium's preprocessing would wait for 1 to ``noop_max`` frames and know nothing of FIRE. It
    stands around this, without no-ops of its own, so FIRE is pressed for one frame, not four.
    """

    def __init__(self, env: gym.Env[Any, Any], config: AtariConfig) -> None:
        super().__init__(env)
        self.metadata = env.metadata | {"render_fps": _FRAMES_PER_SEC / config.frame_skip}
        meanings = env.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        self._noop = meanings.index("NOOP")
        self._fire = meanings.index("FIRE") if config.fire_reset and "FIRE" in meanings else None
        self._noop_max = config.noop_max

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(self._draw()):
            obs, _, terminated, _, info = self.env.step(self._noop)
            if terminated:
                obs, info = self.env.reset()
        if self._fire is not None:
            obs, _, _, _, info = self.env.step(self._fire)
        return obs, info

    def _draw(self) -> int:
        """How many frames to wait; FIRE takes the place of one."""
        if self._noop_max == 0:
            return 0
        drawn = int(self.unwrapped.np_random.integers(0, self._noop_max))
        return max(drawn - (self._fire is not None), 0)
