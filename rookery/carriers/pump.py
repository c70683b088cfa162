"""Joins the relays of one host to one exchange of frames with the other side.

The relays share memory with ends in other processes, which go on meanwhile. So what is pending is
read in an order of its own: streams first, then cells, and cells are sent first. A learner
publishes and then releases; whoever is released therefore finds the weights of before, or newer.
"""

from __future__ import annotations

import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from rookery.carriers.wire import PACKET_BYTES, Frames, Specs, WireError
from rookery.core.ports import Relay, Wakeup
from rookery.transport.eventfd import EventFd

LOOK_SECS = 0.5
"""How long nobody looks where nobody notifies: a heartbeat is sent about once a second."""


class Pump:
    """What one host has to say and is told, for two threads: one sends, one receives.

    ::

        pump = Pump([eventfd])                       # notified when a relay may have something
        pump.add(0, weights_relay, first=True)
        pump.add(1, steps_relay, first=False, wakes=[actor_eventfd])

        while not pump.closed:                       # the sending thread
            for message in packets(pump.take(timeout_secs)):
                send(message)

        for message in received:                     # the receiving thread
            pump.accept(unpack(message, pump.receives))
    """

    def __init__(self, wakeups: Sequence[EventFd] = ()) -> None:
        """``wakeups``: those of the ends here, which nobody else waits for."""
        self.closed = False
        self.reason = ""
        """Why it was closed."""
        self.on_close: Callable[[], None] = lambda: None
        """Called once, by the thread that closes."""
        self._finishing = False
        self._lock = threading.Lock()
        self._relays: dict[int, Relay] = {}
        self._wakes: dict[int, Sequence[Wakeup]] = {}
        self._cells: list[tuple[int, Relay]] = []
        self._streams: deque[tuple[int, Relay]] = deque()
        self._own = EventFd.create()
        weakref.finalize(self, self._own.close)  # no thread waits for it any more
        self._wakeups = {wakeup.descriptor: wakeup for wakeup in (*wakeups, self._own)}
        self._poll = select.poll()
        for descriptor in self._wakeups:
            self._poll.register(descriptor, select.POLLIN)

    def add(self, number: int, relay: Relay, *, first: bool, wakes: Sequence[Wakeup] = ()) -> None:
        """Exchange what ``relay`` gives and takes with the one of the same ``number`` there.

        ``first``: it is a cell. ``wakes``: who waits for what it is told, if the relay itself does
        not notify them.
        """
        self._relays[number], self._wakes[number] = relay, wakes
        (self._cells if first else self._streams).append((number, relay))

    @property
    def receives(self) -> Specs:
        """What each relay may be told."""
        return {number: relay.receives for number, relay in self._relays.items()}

    @property
    def sends(self) -> Specs:
        """What each relay may say."""
        return {number: relay.sends for number, relay in self._relays.items()}

    # ---- the sending thread ----------------------------------------------------------------------

    def take(self, timeout_secs: float) -> Frames:
        """What is pending, cells first; waits until there is something.

        Empty when the time is up, or when it is closed.
        """
        deadline = time.monotonic() + timeout_secs
        while not self.closed:
            frames = self._pending()
            left = deadline - time.monotonic()
            if frames or left <= 0:
                return frames
            if self._finishing:
                self.close("it is finished")
                break
            self._sleep(min(left, LOOK_SECS))
        return []

    def _pending(self) -> Frames:
        with self._lock:
            if self.closed:
                return []
            streams = self._next_of_streams()
            cells: Frames = []
            for number, relay in self._cells:
                while (frame := relay.next()) is not None:
                    cells.append((number, {k: np.array(v) for k, v in frame.items()}))
        return cells + streams

    def _next_of_streams(self) -> Frames:
        """A frame of each in turn, until there are none or enough for a message; the others follow
        next time."""
        found: Frames = []
        idle = size = largest = 0
        while idle < len(self._streams) and size + largest <= PACKET_BYTES:
            number, relay = self._streams[0]
            self._streams.rotate(-1)
            frame = relay.next()
            idle = idle + 1 if frame is None else 0
            if frame is not None:
                found.append((number, frame))
                num_bytes = sum(array.nbytes for array in frame.values())
                size, largest = size + num_bytes, max(largest, num_bytes)
        return found

    def _sleep(self, secs: float) -> None:
        for descriptor, _ in self._poll.poll(secs * 1000):
            self._wakeups[descriptor].wait(0.0)

    # ---- the receiving thread --------------------------------------------------------------------

    def accept(self, frames: Frames) -> None:
        """Frames for the relays of their numbers, which came together; :class:`WireError` if one
        cannot be taken. Who waits for them is woken once, when all are there."""
        with self._lock:
            if self.closed:
                return
            for number, arrays in frames:
                try:
                    self._relays[number].accept(arrays)
                except Exception as error:
                    kind = type(self._relays.get(number)).__name__
                    raise WireError(
                        f"relay {number} ({kind}) cannot take a frame: "
                        f"{type(error).__name__}: {error}"
                    ) from error
        for number in dict.fromkeys(number for number, _ in frames):
            for wake in self._wakes[number]:
                wake.notify()
        self._own.notify()  # there may be an answer

    # ---- any thread ------------------------------------------------------------------------------

    def finish(self) -> None:
        """Close it as soon as all that is pending has been taken."""
        self._finishing = True
        self._own.notify()

    def close(self, reason: str = "") -> None:
        """Touch no relay any more, and let the threads end."""
        with self._lock:
            if self.closed:
                return
            self.closed, self.reason = True, reason
        self._own.notify()
        self.on_close()
