"""The replay role: takes what actors put, keeps batches ready for the learner, saves itself.

A snapshot is made when the learner, which makes the checkpoint, asks for it. A replay that takes
the place of one that died goes on from the newest snapshot of this run.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import numpy as np

from rookery.core.errors import StateLost
from rookery.core.heartbeat import Heartbeat
from rookery.core.ports import Answerer, BaseRole
from rookery.core.spec import Array
from rookery.replay.store import ReplayStore
from rookery.roles.replay import Replay
from rookery.transport.sample_slots import BEGUN, DONE, FREE, MAX_EPISODES, SlotServer
from rookery.transport.step_rings import RingSource

_LOG = logging.getLogger(__name__)
MAX_TAKEN = 64
"""Steps taken in one go before the learner has its turn."""


class ReplayServer(BaseRole):
    """A :class:`Replay` between rings of steps and slots of batches."""

    def __init__(
        self,
        replay: Replay,
        source: RingSource,
        batches: SlotServer,
        snapshots: Answerer,
        *,
        life: int = 0,
        ahead: bool = True,
        store: ReplayStore | None = None,
        checkpoints: Path | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        """``ahead``: actors may put before the table takes more; else one at a time, when it does.
        ``checkpoints`` says which snapshots in the ``store`` are still of use."""
        self.replay, self.source, self.batches, self.snapshots = replay, source, batches, snapshots
        self.slots = batches.slots
        self.life, self.ahead = life, ahead
        self.store, self.checkpoints = store, checkpoints
        self.heartbeat = heartbeat or Heartbeat()

    # ---- the loop --------------------------------------------------------------------------------

    def start(self) -> None:
        """Let actors put."""
        self._tell()
        if self.ahead:
            self.source.grant_all()
        else:
            self._grant_next()

    def ready(self) -> bool:
        """Whether there is anything to take, to hear, to fill or to save."""
        slots, replay = self.slots, self.replay
        return (
            bool(slots.in_state(DONE))
            or self.snapshots.asked_about() is not None
            or (self.source.head() is not None and replay.can_put())
            or (bool(slots.in_state(FREE)) and replay.can_sample() and self._everybody_acted())
            or (not self.ahead and not self.source.granted() and replay.can_put())
        )

    def wait(self, timeout_secs: float) -> None:
        """Sleep until somebody has put or learned."""
        with self.heartbeat.waiting():
            self.source.end.own.wait(timeout_secs)

    def step(self) -> None:
        """Do all that can be done now."""
        self._hear_priorities()
        self.answer()
        self._take_steps()
        self._fill()
        self._tell()
        if not self.ahead:
            self._grant_next()

    def _hear_priorities(self) -> None:
        for slot in self.slots.in_state(DONE):
            told = self.slots.read(slot, self.life)
            if told is not None:
                self.replay.update_priorities(*told)

    def _take_steps(self) -> None:
        for _ in range(MAX_TAKEN):
            actor = self.source.head()
            if actor is None or not self.replay.can_put():
                return
            slot = self.source.take(actor)
            steps, episodes = slot.read()
            if slot.anew.any():  # whoever acted before will not end its episodes
                self.replay.table.abandon(steps.stream[slot.anew])
            self.replay.put(steps, episodes.copy())
            self.source.done(actor, ahead=self.ahead)

    def _fill(self) -> None:
        if not self._everybody_acted():
            return
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
                episodes=self._ended(slot),
            )
            filled = True
        if filled:
            self.batches.end.notify_peers()

    def _everybody_acted(self) -> bool:
        """Whether the learner has its turn where roles take turns and nothing else limits it:
        after one of every actor, however many share the environments."""
        limited = self.replay.limiter.config.samples_per_insert is not None
        return self.ahead or limited or self.source.turn(self.replay.puts) == 0

    def _ended(self, slot: int) -> Array:
        """What the episodes told that ended since; those that are too many wait. Of learners that
        take batches of their own, the first keeps the session."""
        if slot % self.batches.stride:
            return self.slots.episodes[slot, :0]
        episodes = self.replay.take_episodes(self.slots.episodes.shape[2])
        if len(episodes) > MAX_EPISODES:
            self.replay.episodes.append(episodes[MAX_EPISODES:])
        return episodes[:MAX_EPISODES]

    def _tell(self) -> None:
        self.source.count(self.replay.steps)
        self.batches.tell(self.replay.steps, self.replay.limiter.begun)

    def _grant_next(self) -> None:
        if not self.source.granted() and self.replay.can_put():
            self.source.grant_next(self.replay.puts)

    def metrics(self) -> dict[str, float]:
        """How full it is, and how often each sequence is learned from."""
        return self.replay.metrics()

    # ---- snapshots -------------------------------------------------------------------------------

    def answer(self) -> None:
        """Make the snapshots that were asked for."""
        while (steps := self.snapshots.asked_about()) is not None:
            self._hear_priorities()
            self._save(steps)
            self.snapshots.answer()

    def finish(self) -> None:
        """The last checkpoint's snapshot may still be asked for."""
        self.answer()

    def _save(self, steps: int) -> None:
        if self.store is None or self.checkpoints is None:
            return
        begun = time.monotonic()
        kept = {int(path.name) for path in self.checkpoints.glob("*") if path.name.isdigit()}
        self.replay.save(self.store, steps, keep=kept)
        _LOG.info(
            "snapshot at step %d: %.1f MB in %.2f s",
            steps,
            self.store.written_bytes / 1e6,
            time.monotonic() - begun,
        )

    def restore(self, start_steps: int) -> str | None:
        """Go on from the newest snapshot of this past; what to say if steps are lost.

        The run goes on from ``start_steps``, or this replay takes the place of one that died.
        """
        taken = self.source.counted()
        answered = self.snapshots.answered()
        self.snapshots.skip()
        if not self.life and not start_steps:
            return None
        loss = self._load(max(taken, start_steps), start_steps, answered)
        self.replay.steps = max(self.replay.steps, start_steps, taken)
        if self.life:  # no episode goes on across a gap
            self.replay.table.abandon(np.arange(self.replay.table.config.num_streams))
        return loss

    def _load(self, reached: int, start_steps: int, answered: list[int]) -> str | None:
        store = self.store
        found = None if store is None else store.newest(until=start_steps, since=answered)
        if store is None or found is None:
            if store is not None and self.life and self.slots.status[BEGUN]:
                # A trained policy fills it with little but what it does best: values diverge.
                raise StateLost("there is no snapshot of what it held")
            return "no snapshot of the replay: it is filled anew before learning goes on"
        self.replay.load(store, found)
        where = f"{self.replay.table.num_steps:,} steps from its snapshot at step {found:,}"
        if (lost := reached - self.replay.steps) > 0:
            return f"replay goes on with {where}; the {lost:,} steps put after it are lost"
        _LOG.info("replay goes on with %s", where)
        return None
