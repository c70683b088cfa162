"""Super Mario Bros, stage by stage, seen as Atari games are: four grey frames, a step each four.

::

    env = gymnasium.make("rookery/SuperMarioBros-1-1-v0", actions="right_jump")
    obs, info = env.reset(seed=1)                # uint8 [4, 84, 84], oldest frame first

The game is that of gym-super-mario-bros, which ``rookery[mario]`` brings; it is imported when the
first environment is made.
"""

from __future__ import annotations

import importlib
from typing import Any

import cv2
import gymnasium as gym
import numpy as np

from rookery.core.errors import UserError
from rookery.core.spec import Array
from rookery.envs import extras

ACTION_SETS = ("right_jump", "right_only", "simple", "complex")
"""The last three are RIGHT_ONLY, SIMPLE_MOVEMENT and COMPLEX_MOVEMENT of gym-super-mario-bros."""
RIGHT_JUMP = [["right"], ["right", "A"]]

_BUTTONS = {
    "NOOP": 0,
    "A": 1,
    "B": 2,
    "up": 16,
    "down": 32,
    "left": 64,
    "right": 128,
}
"""Their bits in the byte that the emulator takes."""
_FRAMES_PER_SEC = 60
_SCREEN = (240, 256, 3)
_STACK, _SCREEN_SIZE = 4, 84
_LOWEST = {"frame_skip": 1, "stack": 1, "screen_size": 1, "noop_max": 0}


class MarioEnv(gym.Env[Array, np.int64]):
    """One stage: the further to the right and the sooner, the better; it ends with the first life.

    The reward of a frame is that of gym-super-mario-bros: pixels gained, less units of the clock
    that ran down, less 25 for a death, between -15 and 15. A step adds up those of its frames.

    ``info`` holds ``x_pos``, ``y_pos``, ``score``, ``coins``, ``time``, ``life``, ``status``,
    ``world``, ``stage`` and ``flag_get``; ``x_max``, the furthest ``x_pos`` of the episode; and
    at its end ``ended_by``: ``flag``, ``time`` or ``death``.

    Args:
        world: 1 to 8.
        stage: 1 to 4.
        actions: Which buttons there are: one of `ACTION_SETS`.
        preprocess: Prepare what is seen as below; False: the screen in colours, [240, 256, 3].
        frame_skip: Frames in which an action is repeated; the last is seen.
        stack: Frames in one observation; those before an episode began are black.
        screen_size: Height and width of a frame in pixels.
        noop_max: An episode begins with fewer frames without action than this, how many is random;
            0: none, and all episodes begin alike.
        render_mode: None or "rgb_array", the screen in colours.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15.0}  # noqa: RUF012

    def __init__(
        self,
        world: int = 1,
        stage: int = 1,
        actions: str = "simple",
        *,
        preprocess: bool = True,
        frame_skip: int = 4,
        stack: int = _STACK,
        screen_size: int = _SCREEN_SIZE,
        noop_max: int = 30,
        render_mode: str | None = None,
    ) -> None:
        chosen = {
            "frame_skip": frame_skip,
            "stack": stack,
            "screen_size": screen_size,
            "noop_max": noop_max,
        }
        _require(world, stage, actions, chosen, preprocess)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(
                f"render_mode must be None or one of {self.metadata['render_modes']}, "
                f"got {render_mode!r}"
            )
        emulator = _import_emulator()
        combinations = ({"right_jump": RIGHT_JUMP} | emulator.ACTION_LISTS)[actions]
        self._buttons = [sum(_BUTTONS[name] for name in names) for names in combinations]
        self._meanings = [" ".join(names) for names in combinations]
        self._game: Any = emulator.Emulator(world, stage)
        self._preprocess = preprocess
        self._frame_skip = frame_skip
        self._noop_max = noop_max
        self._frames: Array = np.zeros((stack, screen_size, screen_size), np.uint8)
        self._furthest = 0
        self.stacks_frames = preprocess
        """Whether observations are stacks already."""
        self.render_mode = render_mode
        self.metadata = self.metadata | {"render_fps": _FRAMES_PER_SEC / frame_skip}
        self.action_space = gym.spaces.Discrete(len(self._buttons))
        self.observation_space: gym.spaces.Box[Any] = gym.spaces.Box(
            0, 255, self._frames.shape if preprocess else _SCREEN, np.uint8
        )

    @property
    def game(self) -> Any:
        """The emulator, to look at."""
        if self._game is None:
            raise gym.error.ClosedEnvironmentError("this Mario was closed; make another")
        return self._game

    def get_action_meanings(self) -> list[str]:
        """The buttons of each action, such as "right A"."""
        return list(self._meanings)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Begin an episode; without a seed the generator goes on where it was."""
        super().reset(seed=seed)
        self.game.reset()
        for _ in range(int(self.np_random.integers(0, self._noop_max)) if self._noop_max else 0):
            if self.game.step(_BUTTONS["NOOP"])[2]:
                self.game.reset()
        self._frames = np.zeros_like(self._frames)
        self._furthest = 0
        return self._look(), self._info()

    def step(self, action: np.int64 | int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Press the buttons of ``action`` for ``frame_skip`` frames, or until the end."""
        if not 0 <= action < len(self._buttons):
            raise ValueError(f"actions must be 0 to {len(self._buttons) - 1}, got {action}")
        reward, ended = 0.0, False
        for _ in range(self._frame_skip):
            _, gained, ended, _ = self.game.step(self._buttons[action])
            reward += gained
            if ended:
                break
        info = self._info()
        if ended:
            info["ended_by"] = _reason(info)
        return self._look(), reward, ended, False, info

    def render(self) -> Array | None:
        """The screen in colours, [240, 256, 3]."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode given to the constructor")
            return None
        return self._screen()

    def close(self) -> None:
        """Let go of the emulator; closing again does nothing."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = self.game.read_info()
        self._furthest = max(self._furthest, info["x_pos"])
        return info | {"x_max": self._furthest}

    def _screen(self) -> Array:
        """A copy: the emulator draws the next frame where it drew this one."""
        screen: Array = cv2.cvtColor(self.game.pixels, cv2.COLOR_BGRA2RGB)
        return screen

    def _look(self) -> Array:
        """What is seen now; frames are not laid over each other, as Atari's are: where the ground
        is bright, the brighter pixels of two frames would wipe out what moves."""
        if not self._preprocess:
            return self._screen()
        grey = cv2.cvtColor(self.game.pixels, cv2.COLOR_BGRA2GRAY)
        frame = cv2.resize(grey, self._frames.shape[1:], interpolation=cv2.INTER_AREA)
        self._frames = np.concatenate([self._frames[1:], frame[None]])
        return self._frames.copy()


def _reason(info: dict[str, Any]) -> str:
    """Why an episode is over; the game kills Mario when the clock has run down."""
    if info["flag_get"]:
        return "flag"
    return "death" if info["time"] else "time"


def _require(
    world: int, stage: int, actions: str, chosen: dict[str, int], preprocess: bool
) -> None:
    """Refuse what there is not."""
    if world not in range(1, 9) or stage not in range(1, 5):
        raise UserError(
            f"Super Mario Bros has no stage {world}-{stage}; worlds are 1 to 8, stages 1 to 4"
        )
    if actions not in ACTION_SETS:
        known = ", ".join(ACTION_SETS)
        raise UserError(f"env.kwargs.actions is {actions!r}; it must be one of {known}")
    for name, value in chosen.items():
        if value < _LOWEST[name]:
            raise UserError(f"env.kwargs.{name} is {value}; it must be at least {_LOWEST[name]}")
    if not preprocess and (chosen["stack"], chosen["screen_size"]) != (_STACK, _SCREEN_SIZE):
        raise UserError(
            "env.kwargs.preprocess is false, so nothing is stacked or made smaller; "
            "leave out env.kwargs.stack and env.kwargs.screen_size"
        )


def _import_emulator() -> Any:
    """The module of the emulator, which needs packages that not everybody has."""
    try:
        notices: Any = importlib.import_module("gym_notices.notices")
        notices.notices.clear()  # importing gym would print that it is old
        return importlib.import_module("rookery.envs.mario_emulator")
    except (ImportError, OSError) as error:
        raise extras.missing("Super Mario Bros", "gym-super-mario-bros", "mario", error) from error
