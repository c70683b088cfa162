"""Episodes of one agent, or of an agent at several times side by side, as a video with its numbers.

::

    scenes = [Scene(player, panel_for(trained), caption="")]
    with open_video(path, fps=30) as video:
        episodes = record_episodes(scenes, num_episodes=1, add=video.add)

Beside the video lies a JSON file with the seed, the rewards and the end of every episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pygame

from rookery.core.spec import Array
from rookery.play import paint
from rookery.play.panel import Panel
from rookery.play.player import Moment, Player

GAP, CAPTION = 12, 44
"""Pixels between pictures side by side, and height of their captions."""
HOLD_SECS = 1.0


@dataclass(slots=True)
class Scene:
    """One agent's place in the picture."""

    player: Player
    panel: Panel | None
    """None shows the environment's picture alone."""
    caption: str = ""
    trained_secs: float | None = None
    """Training time of the agent, where it is known."""
    unit: float = 1.0
    """How large the panel is."""
    most_width: int | None = None
    """Make wider pictures smaller."""
    _moments: Iterator[Moment] = field(default_factory=lambda: iter(()))
    _rewards: list[float] = field(default_factory=list)
    _picture: Array | None = None
    _over: bool = True

    def begin(self, episode: int) -> None:
        """Be at the start of an episode."""
        self._moments = self.player.episode(episode)
        self._rewards = []
        self._over = False

    def advance(self) -> dict[str, Any] | None:
        """Go on by a moment; the record of the episode when it ends with it."""
        if self._over:
            return None
        moment = next(self._moments)
        if moment.step:
            self._rewards.append(moment.reward)
        self._picture = self._draw(moment)
        self._over = bool(moment.over)
        return self._record(moment) if self._over else None

    def _draw(self, moment: Moment) -> Array:
        assert not isinstance(moment.frame, str)
        if self.panel is None:
            return _narrowed(moment.frame, self.most_width)
        surface = self.panel.draw(moment, self.panel.size(moment.frame, self.unit))
        return paint.surface_picture(surface)

    def _record(self, moment: Moment) -> dict[str, Any]:
        record: dict[str, Any] = {
            "episode": moment.episode,
            "seed": moment.seed,
            "return": _number(moment.score),
            "length": moment.step,
            "terminated": moment.over == "terminated",
            "truncated": moment.over == "truncated",
            "cut": moment.over == "cut",
            "checkpoint_steps": self.player.trained.steps,
            "deterministic": self.player.deterministic,
        }
        if self.trained_secs is not None:
            record["trained_secs"] = self.trained_secs
        return record | {"rewards": [_number(reward) for reward in self._rewards]}

    @property
    def over(self) -> bool:
        """Whether its episode has ended."""
        return self._over

    def picture(self, dim: bool) -> Array:
        """What it shows now, darker if it only waits for the others."""
        assert self._picture is not None
        return paint.dimmed(self._picture) if dim else self._picture


def record_episodes(
    scenes: Sequence[Scene], *, num_episodes: int, fps: float, add: Callable[[Array], None]
) -> list[dict[str, Any]]:
    """Play the episodes and ``add`` a picture for each of their moments; their records."""
    records: list[dict[str, Any]] = []
    for episode in range(num_episodes):
        for scene in scenes:
            scene.begin(episode)
        ended: dict[int, dict[str, Any]] = {}
        running = True
        while running:
            waiting = [scene.over for scene in scenes]
            for place, scene in enumerate(scenes):
                record = scene.advance()
                if record is not None:
                    ended[place] = record
            running = not all(scene.over for scene in scenes)
            picture = compose(scenes, waiting)
            add(picture)
        records += [ended[place] for place in range(len(scenes))]
        for _ in range(round(HOLD_SECS * fps) if num_episodes > 1 or len(scenes) > 1 else 0):
            add(picture)  # time to see how it ended
    return records


def compose(scenes: Sequence[Scene], waiting: Sequence[bool]) -> Array:
    """The pictures side by side, each under its caption; one alone is shown as it is."""
    pictures = [scene.picture(dim) for scene, dim in zip(scenes, waiting, strict=True)]
    if len(scenes) == 1 and not scenes[0].caption:
        return pictures[0]
    height = max(len(picture) for picture in pictures)
    width = sum(picture.shape[1] for picture in pictures) + GAP * (len(pictures) - 1)
    whole = pygame.Surface((width, height + CAPTION))
    whole.fill(paint.GROUND)
    x = 0
    for scene, picture in zip(scenes, pictures, strict=True):
        whole.blit(paint.picture_surface(picture), (x, CAPTION))
        letters = _caption(scene.caption, picture.shape[1])
        middle = (x + picture.shape[1] // 2, CAPTION // 2)
        whole.blit(letters, letters.get_rect(center=middle))
        x += picture.shape[1] + GAP
    return paint.surface_picture(whole)


def _caption(words: str, width: int) -> pygame.Surface:
    """Words as large as ``width`` allows."""
    for size in range(18, 8, -1):
        letters = paint.font(size, True).render(words, True, paint.TEXT)
        if letters.get_width() <= width:
            break
    return letters


def _number(value: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if math.isfinite(value) else None


def _narrowed(picture: Array, most_width: int | None) -> Array:
    if most_width is None or picture.shape[1] <= most_width:
        return picture
    room = (most_width, picture.shape[0])
    return paint.surface_picture(paint.fit(paint.picture_surface(picture), room))
