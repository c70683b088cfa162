"""Where to watch an agent: a window if there is a screen, else the terminal, else plain text."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from rookery.play.controls import Controls
from rookery.play.drawn import PICTURE, TEXT, choose_mode
from rookery.play.opening import chosen_opening
from rookery.play.player import Player
from rookery.play.window import NoDisplay, headless, require_display
from rookery.programs.plan import compute_threads
from rookery.runs.trained import Trained


def watch_agent(
    trained: Trained,
    *,
    in_terminal: bool = False,
    speed: float = 1.0,
    num_episodes: int | None = None,
    seed: int | None = None,
    first: int | None = None,
    deterministic: bool | None = None,
    max_steps: int | None = None,
) -> None:
    """Show ``num_episodes`` episodes (None: until the watcher quits), ``first`` of ``seed`` first.

    If neither is given, a typical one.
    """

    def player(mode: str) -> Player:
        made = Player(trained, mode=mode, deterministic=deterministic, max_steps=max_steps)
        with contextlib.ExitStack() as closing:
            closing.push(made)
            made.check_drawing()  # what cannot be shown need not be looked for
            opening = chosen_opening(
                trained, seed=seed, first=first, deterministic=deterministic, max_steps=max_steps
            )
            closing.pop_all()
        made.seed, made.first = opening.seed, opening.episode
        if opening.why:
            print(opening.why, file=sys.stderr)
        return made

    with compute_threads(1):
        if not in_terminal:
            try:
                _in_window(player, trained, speed, num_episodes)
                return
            except NoDisplay as reason:
                print(f"no window ({reason}); drawing in the terminal", file=sys.stderr)
        _in_terminal(player, trained, speed, num_episodes)


MakePlayer = Callable[[str], Player]


def _in_window(make: MakePlayer, trained: Trained, speed: float, num_episodes: int | None) -> None:
    from rookery.play.panel import panel_for
    from rookery.play.window import watch

    if choose_mode(trained.env, (PICTURE, TEXT)) == TEXT:
        raise NoDisplay(f"{trained.env.id} has no render mode {PICTURE}")
    require_display()
    with make(PICTURE) as player:
        watch(player, panel_for(trained), Controls(player.fps, speed), num_episodes)


def _in_terminal(
    make: MakePlayer, trained: Trained, speed: float, num_episodes: int | None
) -> None:
    from rookery.play.terminal import print_frames, terminal_size, text_mode, watch_text

    headless()
    mode = choose_mode(trained.env, (TEXT, PICTURE))
    if not sys.stdout.isatty():
        with make(mode) as player:
            print_frames(player, Controls(player.fps), 1 if num_episodes is None else num_episodes)
        return
    with make(text_mode(trained.env, mode, terminal_size())) as player:
        watch_text(player, Controls(player.fps, speed), num_episodes)
