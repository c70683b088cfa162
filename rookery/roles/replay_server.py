"""Replay in a process of its own: takes what actors put, keeps batches ready for the learner.

::

    while running:
        if not server.serve():
            bell.wait(timeout_secs)
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from rookery.core.spec import Array
from rookery.roles.replay import Replay
from rookery.transport.sample_slots import DONE, FREE, MAX_EPISODES, SampleSlots
from rookery.transport.step_rings import RingSource
from rookery.transport.wake import Wake

_LOG = logging.getLogger(__name__)
MAX_TAKEN = 64
"""Steps taken in one go before the learner has its turn."""


class ReplayServer:
    """A :class:`Replay` between rings of steps and slots of batches."""

    def __init__(
        self,
        replay: Replay,
        source: RingSource,
        slots: SampleSlots,
        *,
        life: int,
        learner_bells: Sequence[Wake] = (),
        apart: int = 1,
    ) -> None:
        """``apart`` learners take turns at the slots; the first, which keeps the session, is told
        of the episodes."""
        self.replay, self.source, self.slots = replay, source, slots
        self.life, self.learner_bells, self.apart = life, learner_bells, apart
        self.steps = source.rings.steps

    def serve(self) -> bool:
        """Do all that can be done now; whether there was anything."""
        return any([self._hear_priorities(), self._take_steps(), self._fill()])

    def _hear_priorities(self) -> bool:
        done = self.slots.in_state(DONE)
        for slot in done:
            told = self.slots.read(slot, self.life)
            if told is not None:
                self.replay.update_priorities(*told)
        return bool(done)

    def _take_steps(self) -> bool:
        taken = 0
        while taken < MAX_TAKEN and self.replay.can_put():
            actor = self.source.head()
            if actor is None:
                break
            steps, episodes, renewed = self.source.take(actor)
            if renewed:  # whoever acted before will not end its episodes
                self.replay.table.abandon(steps.stream)
            self.replay.put(steps, episodes)
            self.source.done(actor)
            taken += 1
        self.steps[0] = self.replay.steps
        return taken > 0

    def _fill(self) -> bool:
        filled = False
        for slot in self.slots.in_state(FREE):
            if not self.replay.can_sample():
                break
            sample = self.replay.sample(self.slots.sequences[slot])
            self.slots.fill(
                slot,
                sample,
                life=self.life,
                steps=self.replay.steps,
                episodes=self._ended() if slot % self.apart == 0 else self.slots.episodes[slot, :0],
            )
            filled = True
        if filled:
            for bell in self.learner_bells:
                bell.ring()
        return filled

    def _ended(self) -> Array:
        """What the episodes told that ended since; those that are too many wait."""
        episodes = self.replay.take_episodes(self.slots.episodes.shape[2])
        if len(episodes) > MAX_EPISODES:
            self.replay.episodes.append(episodes[MAX_EPISODES:])
        return episodes[:MAX_EPISODES]

    def begin_at(self, steps: int) -> None:
        """Go on counting at ``steps``; no episode goes on across a gap."""
        self.replay.steps = max(self.replay.steps, steps, int(self.steps[0]))
        self.steps[0] = self.replay.steps
        streams = np.arange(self.replay.table.config.num_streams)
        self.replay.table.abandon(streams)
