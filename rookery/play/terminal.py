"""An agent in the terminal: its environment's text, or its picture in coloured half-blocks.

In a pipe the frames come one after another as plain text, as fast as they are read.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from rookery.core.spec import Array
from rookery.envs.make import EnvConfig
from rookery.play.controls import Controls, Key
from rookery.play.drawn import PICTURE, TEXT, Frame, draw, make_drawn, render_modes
from rookery.play.player import Player
from rookery.play.reel import Reel
from rookery.play.status import status_line

Size = tuple[int, int]
"""Columns and lines."""

_HIDE, _SHOW = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""To a screen of its own without a cursor, and back."""
_HOME, _CLEAR_LINE, _CLEAR_BELOW, _PLAIN = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[0m"
_SHADES = " .:-=+*#%@"
_KEYS: dict[str, Key] = {
    "\n": "start",
    "\r": "start",
    " ": "pause",
    "+": "faster",
    "=": "faster",
    "-": "slower",
    "\x1b[C": "step",
    "\x1b": "quit",
    "q": "quit",
}
_LOOK_SECS = 0.05


def terminal_size() -> Size:
    """Columns and lines of the terminal."""
    size = shutil.get_terminal_size((80, 24))
    return size.columns, size.lines


def text_mode(config: EnvConfig, chosen: str, size: Size) -> str:
    """Text if it was ``chosen`` and fits a terminal of ``size``; else the picture, if any."""
    if chosen != TEXT or PICTURE not in render_modes(config):
        return chosen
    env = make_drawn(config, TEXT)
    try:
        env.reset(seed=0)
        lines = str(draw(env, config.id)).splitlines()
    finally:
        env.close()
    fits = len(lines) < size[1] and max(map(len, lines), default=0) <= size[0]
    return TEXT if fits else PICTURE


# ---- frames as text ----------------------------------------------------------------------------


def plain_text(frame: Frame, size: Size) -> list[str]:
    """A frame as lines without escape codes, a line less than the terminal has."""
    if isinstance(frame, str):
        return [line.rstrip() for line in _without_codes(frame).splitlines()]
    small = _scaled(frame, size[0], size[1] - 1).mean(2)
    values, counts = np.unique(small.astype(np.uint8) // 8, return_counts=True)
    ground = float(values[counts.argmax()]) * 8 + 4
    shades = np.abs(small - ground) / max(ground, 255 - ground) * (len(_SHADES) - 1)
    return [
        "".join(_SHADES[shade] for shade in row).rstrip() for row in np.rint(shades).astype(int)
    ]


def coloured_text(frame: Frame, size: Size) -> list[str]:
    """A picture as half-blocks in true colour: two pixels a character."""
    if isinstance(frame, str):
        return frame.splitlines()
    small = _scaled(frame, size[0], 2 * (size[1] - 1), square=True)
    if len(small) % 2:
        small = np.concatenate([small, np.zeros_like(small[:1])])
    return [
        _half_blocks(above, below) for above, below in zip(small[::2], small[1::2], strict=True)
    ]


def _half_blocks(above: Array, below: Array) -> str:
    parts: list[str] = []
    before: tuple[Any, ...] = ()
    for upper, lower in zip(above.tolist(), below.tolist(), strict=True):
        now = (*upper, *lower)
        if now != before:
            parts.append("\x1b[38;2;{};{};{};48;2;{};{};{}m".format(*now))
            before = now
        parts.append("▀")
    return "".join(parts) + _PLAIN


def _scaled(picture: Array, columns: int, lines: int, *, square: bool = False) -> Array:
    """The picture made small; a character is twice as high as wide unless ``square``."""
    from PIL import Image

    height, width = picture.shape[:2]
    squeeze = 1.0 if square else 0.5
    factor = min(columns / width, lines / (height * squeeze))
    size = (max(round(width * factor), 1), max(round(height * factor * squeeze), 1))
    size = (min(size[0], columns), min(size[1], max(lines, 1)))
    small = Image.fromarray(np.ascontiguousarray(picture)).resize(size, Image.Resampling.BOX)
    return np.asarray(small)


def _without_codes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


# ---- showing -----------------------------------------------------------------------------------


def print_frames(player: Player, controls: Controls, num_episodes: int | None) -> None:
    """Every moment as plain text, one after another, for a pipe or a file."""
    reel = Reel(player, controls, num_episodes, hold=False)
    size = terminal_size()
    while not reel.finished:
        for line in plain_text(reel.moment.frame, size):
            print(line[: size[0]] if player.mode == PICTURE else line)
        print(status_line(reel.moment, None, size[0]), end="\n\n", flush=True)
        reel.advance()


def watch_text(player: Player, controls: Controls, num_episodes: int | None) -> None:
    """Play in the terminal until the episodes are over or the watcher quits."""
    coloured = _colours(sys.stdout)
    reel = Reel(player, controls, num_episodes)
    with _screen(sys.stdout), _keys() as pressed:
        looked = time.monotonic()
        while not (controls.quitting or reel.finished):
            _show(reel, controls, coloured)
            wait = min(controls.secs_to_next, _LOOK_SECS) if not controls.paused else _LOOK_SECS
            for key in pressed(wait):
                controls.press(key)
            now = time.monotonic()
            controls.pass_time(now - looked)
            looked = now
            reel.obey()
            while controls.take_due() and not reel.finished:
                reel.advance()
                if time.monotonic() - now > _LOOK_SECS:
                    controls.drop_due()
                    break


def _show(reel: Reel, controls: Controls, coloured: bool) -> None:
    size = terminal_size()
    text = coloured_text if coloured else plain_text
    lines = text(reel.moment.frame, size)[: size[1] - 1]
    if isinstance(reel.moment.frame, str):
        lines = [line[: size[0]] if "\x1b" not in line else line for line in lines]
    lines.append(status_line(reel.moment, controls, size[0]))
    # Cleared before it is written: after its last column a terminal would clear that one.
    sys.stdout.write(_HOME + "\n".join(_CLEAR_LINE + line for line in lines))
    if len(lines) < size[1]:
        sys.stdout.write("\n" + _CLEAR_BELOW)
    sys.stdout.flush()


def _colours(out: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return "utf" in (out.encoding or "").lower()


@contextlib.contextmanager
def _screen(out: TextIO) -> Iterator[None]:
    """A screen of its own, given back however watching ends."""
    if os.environ.get("TERM") == "dumb":
        yield
        return
    out.write(_HIDE)
    try:
        yield
    finally:
        out.write(_PLAIN + _SHOW)
        out.flush()


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits some seconds for keys, if there is a keyboard."""
    if not sys.stdin.isatty():
        yield _no_keys
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)  # keys come at once; Ctrl-C still interrupts
    try:
        yield lambda secs: _pressed(descriptor, secs)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_keys(secs: float) -> list[Key]:
    time.sleep(secs)
    return []


def _pressed(descriptor: int, secs: float) -> list[Key]:
    if not select.select([descriptor], [], [], secs)[0]:
        return []
    text = os.read(descriptor, 64).decode(errors="ignore")
    return parse_keys(text)


def parse_keys(text: str) -> list[Key]:
    """The keys in what a terminal sent."""
    keys: list[Key] = []
    while text:
        length = 3 if text.startswith(("\x1b[", "\x1bO")) else 1
        key = _KEYS.get(text[:length].replace("\x1bO", "\x1b["))
        if key is not None:
            keys.append(key)
        text = text[length:]
    return keys
