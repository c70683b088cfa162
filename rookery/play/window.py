"""A window to watch an agent in: the panel, and a bar with numbers and keys.

::

    open_window("snake", panel.size(frame))     # NoDisplay if there is no screen
    watch(player, panel, controls, num_episodes=None)
"""

from __future__ import annotations

import os
import sys
import time

import pygame

from rookery.play import paint
from rookery.play.controls import Controls, Key
from rookery.play.panel import Panel
from rookery.play.player import Moment, Player
from rookery.play.reel import Reel
from rookery.play.status import numbers

BAR = 36
LEAST_SIZE = (320, 200)
SCREEN_RATE = 60
BUDGET_SECS = 0.8 / SCREEN_RATE
"""How long to play before the screen is drawn again and keys are heard."""
HINTS = "Return new episode   Space pause   + − speed   → step   Esc quit"  # noqa: RUF001

KEYS: dict[int, Key] = {
    pygame.K_RETURN: "start",
    pygame.K_KP_ENTER: "start",
    pygame.K_SPACE: "pause",
    pygame.K_PLUS: "faster",
    pygame.K_EQUALS: "faster",
    pygame.K_KP_PLUS: "faster",
    pygame.K_MINUS: "slower",
    pygame.K_KP_MINUS: "slower",
    pygame.K_RIGHT: "step",
    pygame.K_ESCAPE: "quit",
    pygame.K_q: "quit",
}


class NoDisplay(Exception):  # noqa: N818 - says what is the case
    """There is no screen to open a window on; says why."""


def headless() -> None:
    """Let whatever draws in this process, environments too, do so without a screen or sound."""
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    os.environ["SDL_AUDIODRIVER"] = "dummy"


def require_display() -> None:
    """Raise :class:`NoDisplay` if SDL would find no screen."""
    chosen = os.environ.get("SDL_VIDEODRIVER")
    if chosen is None and sys.platform.startswith("linux"):
        names = ("DISPLAY", "WAYLAND_DISPLAY")
        if not any(os.environ.get(name) for name in names):
            raise NoDisplay(f"neither {' nor '.join(names)} is set")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    try:
        pygame.display.init()
    except pygame.error as error:
        raise NoDisplay(str(error)) from error
    if chosen is None and pygame.display.get_driver() in ("dummy", "offscreen"):
        pygame.display.quit()
        raise NoDisplay("SDL found no screen")


def open_window(title: str, size: tuple[int, int]) -> pygame.Surface:
    """A resizable window with room for a picture of ``size`` and the bar."""
    require_display()
    pygame.display.set_caption(title)
    try:
        return pygame.display.set_mode((size[0], size[1] + BAR), pygame.RESIZABLE)
    except pygame.error as error:
        raise NoDisplay(str(error)) from error


def good_unit(panel: Panel, moment: Moment) -> float:
    """How large a panel may be drawn to begin with: most of the screen, but not huge."""
    assert not isinstance(moment.frame, str)
    width, height = panel.size(moment.frame, 1.0)
    sizes = pygame.display.get_desktop_sizes() or [(1280, 800)]
    room = (0.9 * sizes[0][0] / width, (0.85 * sizes[0][1] - BAR) / height)
    return max(min(1.6, *room), 0.5)


def watch(player: Player, panel: Panel, controls: Controls, num_episodes: int | None) -> None:
    """Play until the episodes are over or the watcher quits."""
    reel = Reel(player, controls, num_episodes)
    title = f"{player.trained.name} · {player.trained.env.id}"
    require_display()
    assert not isinstance(reel.moment.frame, str)
    open_window(title, panel.size(reel.moment.frame, good_unit(panel, reel.moment)))
    clock = pygame.time.Clock()
    while True:
        hear(controls)
        reel.obey()
        if controls.quitting or reel.finished:
            return
        deadline = time.monotonic() + BUDGET_SECS
        while controls.take_due() and not reel.finished:
            reel.advance()
            if time.monotonic() > deadline:
                controls.drop_due()
                break
        show(panel, reel.moment, controls)
        controls.pass_time(clock.tick(SCREEN_RATE) / 1000)


def hear(controls: Controls) -> None:
    """Act on what happened to the window."""
    for event in pygame.event.get():
        if event.type in (pygame.QUIT, pygame.WINDOWCLOSE):
            controls.press("quit")
        elif event.type == pygame.KEYDOWN:
            key = KEYS.get(event.key) or {"+": "faster", "-": "slower"}.get(event.unicode)
            if key is not None:
                controls.press(key)  # type: ignore[arg-type]


def show(panel: Panel, moment: Moment, controls: Controls) -> None:
    """Draw the window."""
    surface = pygame.display.get_surface()
    if surface is None:  # the environment's own code closed the display
        controls.press("quit")
        return
    surface.blit(compose(panel, moment, controls, surface.get_size()), (0, 0))
    pygame.display.flip()


def compose(
    panel: Panel, moment: Moment, controls: Controls, size: tuple[int, int]
) -> pygame.Surface:
    """What a window of ``size`` shows."""
    width, height = max(size[0], LEAST_SIZE[0]), max(size[1], LEAST_SIZE[1])
    whole = pygame.Surface((width, height))
    whole.blit(panel.draw(moment, (width, height - BAR)), (0, 0))
    box = pygame.Rect(0, height - BAR, width, BAR)
    pygame.draw.rect(whole, paint.mix(paint.GROUND, paint.RAISED, 0.5), box)
    pygame.draw.line(whole, paint.LINE, box.topleft, box.topright)
    x, y = 14, box.y + 10
    for name, words in numbers(moment, controls):
        x = paint.write(whole, (x, y), name, 13, paint.MUTED).right + 6
        x = paint.write(whole, (x, y), words, 13, bold=True).right + 18
    hints = paint.font(12).render(HINTS, True, paint.MUTED)
    if x + hints.get_width() + 14 <= width:
        whole.blit(hints, (width - hints.get_width() - 14, y + 1))
    return whole
