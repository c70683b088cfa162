"""The panel: the environment's picture, and beside it what the agent makes of it.

::

    panel = panel_for(trained)
    surface = panel.draw(moment, panel.size(moment.frame))

Measures are in units that grow with the height, so a panel looks the same at every size.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pygame

from rookery.core.spec import Array
from rookery.envs.snake import CELL_PIXELS
from rookery.envs.snake_world import SIZE, STORE_CAP
from rookery.play import paint
from rookery.play.player import Moment, Over
from rookery.play.status import short_number
from rookery.runs.trained import Trained
from rookery.runs.value_units import ValueUnits

HEIGHT, SIDE, PAD = 424, 240, 12
"""Units: height of a panel, width of its right side, space around things."""
TRACE_STEPS = 400
LEAST_STORE = 30
"""A store below this is shown in red: it lasts for so many steps."""

_OVER: dict[Over, str] = {
    "terminated": "ended after {} steps",
    "truncated": "time limit after {} steps",
    "cut": "stopped after {} steps",
}
_FOOD, _WATER = (226, 88, 62), (58, 134, 255)


def is_snake(trained: Trained) -> bool:
    """Whether an agent plays Snake."""
    return trained.env.id.rpartition(":")[2] == "rookery/Snake-v0"


def panel_for(trained: Trained) -> Panel:
    """The panel that suits an agent's environment."""
    units = trained.value_units
    return SnakePanel(units) if is_snake(trained) else Panel(units)


class Panel:
    """Picture, step, return, value and the network's units, for any environment."""

    value_range: tuple[float, float] | None = None
    """Where the colours of a value begin and end; None goes by the values seen."""

    def __init__(self, units: ValueUnits) -> None:
        self._value_units = units
        self._values: deque[float] = deque(maxlen=TRACE_STEPS)
        self._seen: tuple[float, float] | None = None
        self._episode = -1
        self._step = -1
        self._units = [0, 0]
        self._loudest = 1e-6

    def size(self, frame: Array, unit: float = 1.0) -> tuple[int, int]:
        """Width and height that suit a picture."""
        height, width = frame.shape[:2]
        inner = (HEIGHT - 2 * PAD) * unit
        return round(inner * width / height + (2 * PAD + SIDE) * unit), round(HEIGHT * unit)

    def draw(self, moment: Moment, size: tuple[int, int]) -> pygame.Surface:
        """The panel of one moment; call it once for each moment, in their order."""
        self._note(moment)
        surface = pygame.Surface(size)
        surface.fill(paint.GROUND)
        unit = min(max(size[1] / HEIGHT, 0.5), 3.0, size[0] / (2 * SIDE))
        side = pygame.Rect(0, 0, round(SIDE * unit), size[1])
        side.right = size[0]
        pad = round(PAD * unit)
        room = pygame.Rect(pad, pad, side.x - 2 * pad, size[1] - 2 * pad)
        place = self._draw_picture(surface, moment, room)
        if moment.over:
            self._draw_end(surface, moment, place, unit)
        pygame.draw.rect(surface, paint.RAISED, side)
        self._draw_side(surface, moment, side.inflate(-2 * pad, -2 * pad), unit)
        return surface

    def _note(self, moment: Moment) -> None:
        """Remember what the scales go by."""
        if moment.episode != self._episode or moment.step < self._step:
            self._values.clear()
        if (moment.episode, moment.step) == (self._episode, self._step) and self._values:
            return  # drawn again, such as at another size
        self._episode, self._step = moment.episode, moment.step
        decision = moment.decision
        if decision is None:
            return
        low, high = self._seen or (decision.value, decision.value)
        self._seen = min(low, decision.value), max(high, decision.value)
        self._values.append(decision.value)
        for place, units in enumerate((decision.first_layer, decision.memory)):
            self._units[place] = 0 if units is None else len(units)
        if decision.first_layer is not None and len(decision.first_layer):
            loudest = float(np.abs(decision.first_layer).max())
            self._loudest = max(loudest, 0.995 * self._loudest, 1e-6)

    # ---- left ----------------------------------------------------------------------------------

    def _draw_picture(
        self, surface: pygame.Surface, moment: Moment, room: pygame.Rect
    ) -> pygame.Rect:
        assert not isinstance(moment.frame, str)
        picture = paint.fit(paint.picture_surface(moment.frame), room.size)
        return surface.blit(picture, picture.get_rect(center=room.center))

    def _draw_end(
        self, surface: pygame.Surface, moment: Moment, place: pygame.Rect, unit: float
    ) -> None:
        size = round(14 * unit)
        words = _OVER[moment.over].format(f"{moment.step:,}")
        letters = paint.font(size, True).render(words, True, paint.TEXT)
        box = letters.get_rect().inflate(2 * size, size)
        box.midbottom = (place.centerx, place.bottom - round(24 * unit))
        pygame.draw.rect(surface, paint.RAISED, box, border_radius=box.height // 2)
        pygame.draw.rect(surface, paint.MUTED, box, max(round(unit), 1), box.height // 2)
        surface.blit(letters, letters.get_rect(center=box.center))

    # ---- right ---------------------------------------------------------------------------------

    def _draw_side(
        self, surface: pygame.Surface, moment: Moment, box: pygame.Rect, unit: float
    ) -> None:
        y = self._draw_counts(surface, moment, box, unit)
        y = self._draw_value(surface, moment, box, y, unit)
        bottom = self._draw_units(surface, moment, box, y + round(48 * unit), unit)
        height = min(bottom - round(12 * unit) - y, round(96 * unit))
        if height >= 12:
            line = pygame.Rect(box.x, y, box.width, height)
            paint.trace(surface, line, list(self._values), *self._scale())

    def _draw_counts(
        self, surface: pygame.Surface, moment: Moment, box: pygame.Rect, unit: float
    ) -> int:
        """Step and return; gives where the next part begins."""
        _labelled(surface, box.topleft, "STEP", f"{moment.step:,}", unit)
        middle = (box.x + box.width // 2, box.y)
        _labelled(surface, middle, "RETURN", short_number(moment.score), unit)
        return box.y + round(60 * unit)

    def _draw_value(
        self, surface: pygame.Surface, moment: Moment, box: pygame.Rect, y: int, unit: float
    ) -> int:
        low, high = self._scale()
        value = None if moment.decision is None else moment.decision.value
        share = None if value is None else (value - low) / (high - low) if high > low else 0.5
        swatch = pygame.Rect(0, y, round(46 * unit), round(40 * unit))
        swatch.right = box.right
        colour = paint.LINE if share is None else paint.good_or_bad(min(max(share, 0.0), 1.0))
        pygame.draw.rect(surface, colour, swatch, border_radius=round(6 * unit))
        shown = "–" if value is None else _signed(value)  # noqa: RUF001
        label = value_label(self._value_units)
        room = box.width - swatch.width - round(4 * unit)
        _labelled(surface, (box.x, y), label, shown, unit, room)
        y += round(54 * unit)
        band = pygame.Rect(box.x, y, box.width, round(8 * unit))
        paint.scale(surface, band, share)
        y += round(13 * unit)
        small = round(11 * unit)
        decimals = 0 if self.value_range else 1
        paint.write(surface, (box.x, y), _signed(low, decimals), small, paint.MUTED)
        words = _signed(high, decimals)
        paint.write(surface, (box.right, y), words, small, paint.MUTED, align="right")
        gamma = self._value_units.gamma
        if gamma is not None:
            paint.write(
                surface, (box.centerx, y), f"discount {gamma:g}", small, paint.MUTED, align="centre"
            )
        return y + round(20 * unit)

    def _scale(self) -> tuple[float, float]:
        """Where the colours of a value begin and end; never so near that noise looks like news."""
        if self.value_range is not None:
            return self.value_range
        low, high = self._seen or (0.0, 0.0)
        least = max(0.2 * abs(low + high) / 2, 0.2)
        lack = max(least - (high - low), 0.0) / 2
        return low - lack, high + lack

    def _draw_units(
        self, surface: pygame.Surface, moment: Moment, box: pygame.Rect, y: int, unit: float
    ) -> int:
        """Heat maps of the first layer and the recurrent state, side by side at the bottom.

        They may begin at ``y``; gives where they do.
        """
        first, memory = (None, None)
        if moment.decision is not None:
            first, memory = moment.decision.first_layer, moment.decision.memory
        maps = [
            ("First layer", first, self._loudest, self._units[0]),
            ("Recurrent state", memory, 1.0, self._units[1]),
        ]
        maps = [it for it in maps if it[3]]
        label = round(18 * unit)
        width = (box.width - round(12 * unit)) // 2
        side = min(width if len(maps) > 1 else box.width, box.bottom - y - label)
        if not maps or side < 16:
            return box.bottom
        for place, (name, values, loudest, num) in enumerate(maps):
            x = box.x + place * (width + round(12 * unit))
            top = box.bottom - side
            paint.write(surface, (x, top - label), name, round(12 * unit), paint.MUTED)
            shown = None if values is None else values / loudest
            paint.heat_map(surface, (x, top), side, shown, num)
        return box.bottom - side - label


class SnakePanel(Panel):
    """Snake's map with soft tiles, and its stores of food and water."""

    value_range = (-2.0, 0.0)

    def size(self, frame: Array, unit: float = 1.0) -> tuple[int, int]:
        """Width and height in which every cell of the map is equally large."""
        side = SIZE * round(CELL_PIXELS * unit)
        return side + round((2 * PAD + SIDE) * unit), side + round(2 * PAD * unit)

    def _draw_picture(
        self, surface: pygame.Surface, moment: Moment, room: pygame.Rect
    ) -> pygame.Rect:
        assert not isinstance(moment.frame, str)
        middle = CELL_PIXELS // 2
        colours = moment.frame[middle::CELL_PIXELS, middle::CELL_PIXELS]
        cell = max(min(room.size) // SIZE, 1)
        place = pygame.Rect(0, 0, cell * SIZE, cell * SIZE)
        place.center = room.center
        surface.blit(_empty_map(tuple(colours[0, 0].tolist()), cell), place)
        empty = np.array(paint.GROUND, np.uint8)
        filled = (colours != empty).any(2)
        filled[[0, -1]] = filled[:, [0, -1]] = False
        for row, column in np.argwhere(filled):
            red, green, blue = colours[row, column].tolist()
            tile = paint.rounded_tile((red, green, blue), cell)
            surface.blit(tile, (place.x + column * cell, place.y + row * cell))
        head = np.argwhere((colours != colours[0, 0]).any(2) & ~_inside(SIZE))
        for row, column in head:  # a snake that ran into the wall
            red, green, blue = colours[row, column].tolist()
            box = pygame.Rect(place.x + column * cell, place.y + row * cell, cell, cell)
            pygame.draw.rect(surface, (red, green, blue), box)
        return place

    def _draw_counts(
        self, surface: pygame.Surface, moment: Moment, box: pygame.Rect, unit: float
    ) -> int:
        """Steps, and the two stores."""
        _labelled(surface, box.topleft, "STEPS", f"{moment.step:,}", unit)
        y = box.y + round(56 * unit)
        for name, colour in (("food", _FOOD), ("water", _WATER)):
            store = int(moment.info.get(name, 0))
            size = round(12 * unit)
            paint.write(surface, (box.x, y), name.capitalize(), size, paint.MUTED)
            words, tint = f"{max(store, 0)}", paint.TEXT if store >= LEAST_STORE else paint.LOW
            paint.write(surface, (box.right, y), words, size, tint, bold=True, align="right")
            band = pygame.Rect(box.x, y + round(18 * unit), box.width, round(8 * unit))
            paint.bar(surface, band, store / STORE_CAP, colour)
            y += round(36 * unit)
        return y + round(6 * unit)


def value_label(units: ValueUnits) -> str:
    """What a value is of, where that is not the score."""
    return f"VALUE, {units.rewards} rewards".upper() if units.rewards else "VALUE"


def _labelled(
    surface: pygame.Surface,
    at: tuple[int, int],
    label: str,
    words: str,
    unit: float,
    room: int | None = None,
) -> None:
    """A number under its name, which is made smaller to fit in ``room``."""
    size = round(11 * unit)
    if room is not None:
        while size > 1 and paint.font(size, True).size(label)[0] > room:
            size -= 1
    paint.write(surface, at, label, size, paint.MUTED, bold=True)
    paint.write(surface, (at[0], at[1] + round(15 * unit)), words, round(22 * unit), bold=True)


def _signed(value: float, decimals: int = 2) -> str:
    """A value in few characters, with a real minus sign."""
    decimals = min(decimals, 0 if abs(value) >= 1000 else 1 if abs(value) >= 10 else decimals)
    return f"{value:,.{decimals}f}".replace("-", "−")  # noqa: RUF001


def _inside(size: int) -> Array:
    inside = np.zeros((size, size), np.bool_)
    inside[1:-1, 1:-1] = True
    return inside


_MAPS: dict[tuple[tuple[int, ...], int], pygame.Surface] = {}


def _empty_map(wall: tuple[int, ...], cell: int) -> pygame.Surface:
    """Ground with a faint grid, and the wall around it."""
    key = (wall, cell)
    if key not in _MAPS:
        side = cell * SIZE
        surface = pygame.Surface((side, side))
        surface.fill(wall)
        ground = pygame.Rect(cell, cell, side - 2 * cell, side - 2 * cell)
        pygame.draw.rect(surface, paint.GROUND, ground)
        faint = paint.mix(paint.GROUND, paint.LINE, 0.35)
        for line in range(2, SIZE - 1):
            pygame.draw.line(surface, faint, (line * cell, cell), (line * cell, side - cell - 1))
            pygame.draw.line(surface, faint, (cell, line * cell), (side - cell - 1, line * cell))
        _MAPS[key] = surface
    return _MAPS[key]
