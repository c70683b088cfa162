"""Write a video of an agent, or of an agent at several times of its training, and its numbers."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.core.spec import Array
from rookery.play.drawn import PICTURE, choose_mode
from rookery.play.opening import Opening, chosen_opening
from rookery.play.panel import is_snake, panel_for
from rookery.play.past import past_agents
from rookery.play.player import Player
from rookery.play.recording import GAP, Scene, record_episodes
from rookery.play.video import GIF_MOST_FPS, Video, check_path, open_video
from rookery.play.window import headless
from rookery.programs.plan import compute_threads
from rookery.runs.atomic import write_atomic, writing
from rookery.runs.trained import Trained, find_trained

_LOG = logging.getLogger(__name__)

LARGE, SMALL = 1.4, 1.0
"""Sizes of a panel: alone in an MP4, or where room and bytes are dear."""
WIDE = 1920
"""Pictures of environments side by side are made smaller to stay within this."""


@dataclass(frozen=True, kw_only=True)
class RecordOrder:
    """What to record."""

    source: str
    out: Path
    checkpoint: str | None = None
    num_episodes: int = 1
    max_steps: int | None = None
    length_secs: float | None = None
    """How long the film may be; several episodes have equal parts of it."""
    fps: float | None = None
    """Pictures a second; None: as the environment says."""
    at: Sequence[float] = ()
    """Training times in seconds, for agents side by side."""
    seed: int | None = None
    first: int | None = None
    """The episode of the seed to begin with; None: a typical one, or of a seed that is given 0."""
    deterministic: bool | None = None
    panel: bool = False
    """Show what the agent makes of it beside the picture; Snake always does."""
    force: bool = False
    on_picture: Callable[[int], Any] = lambda num_pictures: None
    """Told after each picture how many there are; what it raises ends the film, without a file."""


def record(order: RecordOrder) -> dict[str, Any]:
    """Play, and write the video and its JSON file; what the latter holds."""
    check_path(order.out, force=order.force)
    headless()
    trained = find_trained(order.source, order.checkpoint)
    choose_mode(trained.env, (PICTURE,))
    with contextlib.ExitStack() as closing, compute_threads(1):
        opening = chosen_opening(
            trained,
            seed=order.seed,
            first=order.first,
            deterministic=order.deterministic,
            max_steps=order.max_steps,
        )
        scenes = _scenes(order, trained, opening, closing)
        player = scenes[-1].player
        fps = order.fps or player.fps
        if order.out.suffix.lower() == ".gif" and fps > GIF_MOST_FPS:
            _LOG.warning("a GIF shows at most %g pictures a second, not %g", GIF_MOST_FPS, fps)
            fps = GIF_MOST_FPS
        if order.length_secs is not None:
            _shorten(scenes, round(order.length_secs * fps) // order.num_episodes)
        with open_video(order.out, fps=fps) as video:
            episodes = record_episodes(
                scenes, num_episodes=order.num_episodes, fps=fps, add=_told(video, order.on_picture)
            )
        summary = {
            "agent": trained.name,
            "environment": trained.env.id,
            "deterministic": player.deterministic,
            "seed": opening.seed,
            "opening": opening.why or None,
            "fps": fps,
            "episodes": episodes,
        }
    path = order.out.with_suffix(".json")
    with writing(path, "--out"):
        write_atomic(path, json.dumps(summary, indent=1).encode() + b"\n", durable=False)
    return summary


def _told(video: Video, on_picture: Callable[[int], Any]) -> Callable[[Array], None]:
    """What adds pictures to ``video`` and says how many there are."""
    numbers = itertools.count(1)

    def add(picture: Array) -> None:
        video.add(picture)
        on_picture(next(numbers))

    return add


def _shorten(scenes: Sequence[Scene], num_pictures: int) -> None:
    """Have episodes take no more pictures than this: one each step, and the first."""
    most = max(num_pictures - 1, 1)
    for scene in scenes:
        given = scene.player.max_steps
        scene.player.max_steps = most if given is None else min(given, most)


def _scenes(
    order: RecordOrder, trained: Trained, opening: Opening, closing: contextlib.ExitStack
) -> list[Scene]:
    """One for the agent, or one for each of the times asked for."""
    with_panel = order.panel or is_snake(trained)
    small = bool(order.at) or order.out.suffix.lower() == ".gif"

    def scene(agent: Trained, untrained: bool = False, **more: Any) -> Scene:
        by_chance = untrained and order.deterministic is None
        player = Player(
            agent,
            mode=PICTURE,
            seed=opening.seed,
            first=opening.episode,
            deterministic=False if by_chance else order.deterministic,
            max_steps=order.max_steps,
        )
        closing.enter_context(player)
        panel = panel_for(agent) if with_panel else None
        return Scene(player, panel, unit=SMALL if small else LARGE, **more)

    if not order.at:
        return [scene(trained)]
    agents = past_agents(order.source, trained, order.at)
    width = (WIDE - GAP * (len(agents) - 1)) // len(agents)
    return [
        scene(
            it.trained,
            it.untrained,
            caption=it.caption,
            trained_secs=it.wall_secs,
            most_width=width,
        )
        for it in agents
    ]
