"""Colours, letters and shapes on a pygame surface; no display is needed.

Shapes: n units of a network, drawn as a near-square grid of cells.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pygame

from rookery.core.spec import Array

Colour = tuple[int, int, int]
Point = tuple[int, int]

GROUND: Colour = (16, 18, 24)
RAISED: Colour = (26, 29, 38)
LINE: Colour = (48, 53, 66)
TEXT: Colour = (232, 235, 242)
MUTED: Colour = (146, 154, 170)
LOW, MIDDLE, HIGH = (226, 72, 72), (236, 186, 74), (82, 196, 112)
COLD, WARM = (64, 148, 255), (255, 170, 64)


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """``one`` with a ``share`` of ``other``, from 0 to 1."""
    share = min(max(share, 0.0), 1.0)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return red, green, blue


def good_or_bad(share: float) -> Colour:
    """From red (0) through amber to green (1)."""
    return mix(LOW, MIDDLE, 2 * share) if share < 0.5 else mix(MIDDLE, HIGH, 2 * share - 1)


def warm_or_cold(values: Array) -> Array:
    """Values from -1 (blue) through 0 (dark) to 1 (amber) as colours ``[..., 3]``."""
    strength = np.sqrt(np.clip(np.abs(values), 0.0, 1.0))[..., None]  # small ones must be seen too
    ends = np.where(values[..., None] < 0, np.array(COLD), np.array(WARM))
    dark = np.array(GROUND)
    colours: Array = np.rint(dark + (ends - dark) * strength).astype(np.uint8)
    return colours


# ---- letters -----------------------------------------------------------------------------------

_FONTS: dict[tuple[int, bool], pygame.font.Font] = {}


def font(size: int, bold: bool = False) -> pygame.font.Font:
    """A sans-serif of ``size`` pixels."""
    if not pygame.font.get_init():  # an environment that closes may end all of pygame
        pygame.font.init()
        _FONTS.clear()
    key = (max(size, 6), bold)
    if key not in _FONTS:
        _FONTS[key] = pygame.font.Font(_font_file(bold), key[0])
    return _FONTS[key]


@cache
def _font_file(bold: bool) -> str | None:
    """DejaVu Sans, which Matplotlib brings; None is the font that pygame has in itself."""
    spec = importlib.util.find_spec("matplotlib")
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place, "mpl-data", "fonts", "ttf", name)
        if path.is_file():
            return str(path)
    return None


def write(
    surface: pygame.Surface,
    at: Point,
    words: str,
    size: int,
    colour: Colour = TEXT,
    *,
    bold: bool = False,
    align: Literal["left", "centre", "right"] = "left",
) -> pygame.Rect:
    """Write ``words`` with their top at ``at``; returns where they are."""
    letters = font(size, bold).render(words, True, colour)
    x = at[0] - {"left": 0, "centre": letters.get_width() // 2, "right": letters.get_width()}[align]
    return surface.blit(letters, (x, at[1]))


# ---- shapes ------------------------------------------------------------------------------------


def bar(surface: pygame.Surface, box: pygame.Rect, share: float, colour: Colour) -> None:
    """A horizontal bar, filled from the left."""
    radius = box.height // 2
    pygame.draw.rect(surface, LINE, box, border_radius=radius)
    width = round(box.width * min(max(share, 0.0), 1.0))
    if width > 0:
        filled = pygame.Rect(box.x, box.y, max(width, box.height), box.height)
        pygame.draw.rect(surface, colour, filled, border_radius=radius)


def scale(surface: pygame.Surface, box: pygame.Rect, share: float | None) -> None:
    """A band from red to green with a mark at ``share``."""
    for x in range(box.width):
        colour = mix(RAISED, good_or_bad(x / max(box.width - 1, 1)), 0.75)
        pygame.draw.line(surface, colour, (box.x + x, box.y), (box.x + x, box.bottom - 1))
    if share is not None:
        x = box.x + round(min(max(share, 0.0), 1.0) * (box.width - 1))
        mark = pygame.Rect(0, 0, max(box.height // 3, 3), box.height + max(box.height // 2, 4))
        mark.center = (x, box.centery)
        pygame.draw.rect(surface, TEXT, mark, border_radius=mark.width // 2)


def trace(
    surface: pygame.Surface, box: pygame.Rect, values: list[float], low: float, high: float
) -> None:
    """A line through ``values``, the newest at the right."""
    pygame.draw.rect(surface, mix(GROUND, RAISED, 0.5), box, border_radius=3)
    inner = box.inflate(-4, -6)
    if len(values) < 2 or high <= low or inner.width < 2:
        return
    shown = values[-inner.width :]
    points = [
        (
            inner.right - (len(shown) - 1 - place),
            inner.bottom - round(min(max((value - low) / (high - low), 0.0), 1.0) * inner.height),
        )
        for place, value in enumerate(shown)
    ]
    pygame.draw.aalines(surface, mix(MUTED, TEXT, 0.4), False, points)
    share = (values[-1] - low) / (high - low)
    pygame.draw.circle(surface, good_or_bad(share), points[-1], max(box.height // 14, 3))


def near_square(num: int) -> tuple[int, int]:
    """Rows and columns of the grid that holds ``num`` cells."""
    columns = math.ceil(math.sqrt(num))
    return math.ceil(num / columns), columns


def heat_map(
    surface: pygame.Surface, at: Point, side: int, values: Array | None, num: int
) -> pygame.Rect:
    """``values`` between -1 and 1 as a grid of ``num`` cells, about ``side`` pixels wide."""
    rows, columns = near_square(num)
    cell = max(side // columns, 1)
    grid = np.empty((rows * columns, 3), np.uint8)
    grid[:] = RAISED
    grid[:num] = warm_or_cold(np.zeros(num) if values is None else values)
    picture = grid.reshape(rows, columns, 3).repeat(cell, 0).repeat(cell, 1)
    if cell >= 4:  # a gap between the cells, where there is room for one
        picture[::cell] = picture[:, ::cell] = RAISED
    return surface.blit(picture_surface(picture), at)


def picture_surface(picture: Array) -> pygame.Surface:
    """A picture ``[height, width, 3]`` as a surface."""
    height, width = picture.shape[:2]
    return pygame.image.frombytes(np.ascontiguousarray(picture).tobytes(), (width, height), "RGB")


def surface_picture(surface: pygame.Surface) -> Array:
    """A surface as a picture ``[height, width, 3]``."""
    width, height = surface.get_size()
    data = np.frombuffer(pygame.image.tobytes(surface, "RGB"), np.uint8)
    return data.reshape(height, width, 3)


@cache
def rounded_tile(colour: Colour, side: int) -> pygame.Surface:
    """A square with soft corners."""
    large = pygame.Surface((4 * side, 4 * side), pygame.SRCALPHA)
    large.fill((*colour, 0))
    box = large.get_rect().inflate(-4, -4)
    pygame.draw.rect(large, colour, box, border_radius=int(1.3 * side))
    return pygame.transform.smoothscale(large, (side, side))


def fit(picture: pygame.Surface, room: Point) -> pygame.Surface:
    """``picture`` as large as ``room`` allows, in its own proportions."""
    width, height = picture.get_size()
    factor = min(room[0] / width, room[1] / height)
    size = (max(round(width * factor), 1), max(round(height * factor), 1))
    if size == (width, height):
        return picture
    if factor >= 2:  # large pixels stay sharp
        return pygame.transform.scale(picture, size)
    return pygame.transform.smoothscale(picture, size)


def dimmed(picture: Array) -> Array:
    """A picture of something that is over."""
    dark: Array = (picture.astype(np.uint16) * 2 // 5).astype(np.uint8)
    return dark
