"""Super Mario Bros in an emulator: gym-super-mario-bros 7.4 and nes-py 8.2 under NumPy 2.

The rules (reward, end, skipped scenes) are theirs. Both count with single bytes, which NumPy 1 made
larger when they overflowed and NumPy 2 does not; so bytes are handed to them as whole numbers here.
Only :mod:`rookery.envs.mario` imports this, once there is a game to play.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gym_super_mario_bros import SuperMarioBrosEnv, actions
from gym_super_mario_bros._roms import rom_path
from nes_py._rom import ROM
from numpy.lib.stride_tricks import as_strided

from rookery.core.errors import UserError
from rookery.core.spec import Array
from rookery.envs.faults import one_line

ACTION_LISTS: dict[str, list[list[str]]] = {
    "right_only": actions.RIGHT_ONLY,
    "simple": actions.SIMPLE_MOVEMENT,
    "complex": actions.COMPLEX_MOVEMENT,
}
"""Buttons that each action presses at once, of every set that gym-super-mario-bros has."""
_HEADER_BYTES = 16


def _header(rom: Any) -> Array:
    """What a ROM begins with; sizes are computed from it."""
    header: Array = rom.raw_data[:_HEADER_BYTES].astype(np.int64)
    return header


ROM.header = property(_header)


class Emulator(SuperMarioBrosEnv):  # type: ignore[misc]
    """One stage of the game, a frame a step, by the old interface of Gym."""

    pixels: Array
    """The screen as it lies in memory, [240, 256, 4]: blue, green, red and a byte of nothing."""

    def __init__(self, world: int, stage: int) -> None:
        _require_rom(rom_path(False, "vanilla"))
        super().__init__(target=(world, stage))

    def _ram_buffer(self) -> memoryview:
        """The memory itself; what is read from it are Python's numbers, which do not overflow."""
        return memoryview(super()._ram_buffer())

    def _screen_buffer(self) -> Array:
        """The view of nes-py runs backwards through the memory, so OpenCV would first copy it;
        ``pixels`` is a view in the order of the memory."""
        screen: Array = super()._screen_buffer()
        height, width, _ = screen.shape
        self.pixels = as_strided(screen[:, :, ::-1], (height, width, 4))
        return screen

    @property
    def _left_x_position(self) -> int:
        """Pixels between Mario and the left of the screen, of which NumPy 2 makes no byte."""
        return int(self.ram[0x86] - self.ram[0x071C]) % 256

    def _get_info(self) -> dict[str, Any]:
        """Nothing: of most frames nobody asks."""
        return {}

    def read_info(self) -> dict[str, Any]:
        """Where Mario is and what he has, now."""
        info: dict[str, Any] = super()._get_info()
        return info


def _require_rom(path: str) -> None:
    """Refuse a ROM that cannot be read: the emulator itself would end the process."""
    try:
        rom = ROM(path)
        lacks = int(rom.chr_rom_stop) - len(rom.raw_data)
    except (OSError, ValueError, IndexError) as error:
        raise _unreadable(path, one_line(error)) from error
    if lacks > 0:
        raise _unreadable(path, f"its last {lacks} bytes are missing")
    if not path.isascii():
        raise UserError(
            f"the emulator opens no file with letters beyond ASCII in its path ({path}); "
            'install "rookery[mario]" in an environment elsewhere'
        )


def _unreadable(path: str, why: str) -> UserError:
    return UserError(
        f"the ROM {path} cannot be read ({why}); "
        "pip install --force-reinstall --no-deps gym-super-mario-bros brings it anew"
    )
