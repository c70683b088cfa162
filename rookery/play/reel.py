"""Episode after episode, as a watcher sees them: each ends with a short hold of its last moment."""

from __future__ import annotations

from collections.abc import Iterator

from rookery.play.controls import Controls
from rookery.play.player import Moment, Player

HOLD_SECS = 1.0


class Reel:
    """The moments of ``num_episodes`` episodes (None: without end), one :meth:`advance` each."""

    def __init__(
        self, player: Player, controls: Controls, num_episodes: int | None, *, hold: bool = True
    ) -> None:
        self.player = player
        self.controls = controls
        self.num_episodes = num_episodes
        self.episode = -1
        self.finished = False
        self._hold_moments = round(HOLD_SECS * controls.fps) if hold else 0
        self._hold = 0
        self._moments: Iterator[Moment] = iter(())
        self.moment = self._begin()

    def _begin(self) -> Moment:
        self.episode += 1
        self._moments = self.player.episode(self.episode)
        self.moment = next(self._moments)
        return self.moment

    def advance(self) -> None:
        """Go on to the next moment; at an end hold, then begin the next episode if there is one."""
        if not self.moment.over:
            self.moment = next(self._moments)
            self._hold = self._hold_moments
            return
        self._hold -= 1
        if self._hold > 0 and not self.controls.paused:
            return
        if self.num_episodes is not None and self.episode + 1 >= self.num_episodes:
            self.finished = True
        else:
            self._begin()

    def obey(self) -> None:
        """Begin the next episode if the watcher asked for it."""
        if self.controls.restart:
            self.controls.restart = False
            self._begin()
