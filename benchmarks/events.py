"""A small discrete-event simulation: processes are generators; time passes where they wait.

::

    def customer(sim, desk):
        yield 1.5                       # sleeps 1.5 simulated seconds
        yield from desk.use(0.2)        # waits for its turn, then takes 0.2 s
        answer = yield event            # until somebody fires it

    sim = Simulation()
    sim.start(customer(sim, Resource(sim, 1)))
    sim.run()

What happens at the same moment happens in the order in which it was asked for, so a simulation
repeats exactly.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Generator, Iterable
from typing import Any

Process = Generator["float | Event", Any, Any]
"""Yields seconds to sleep, or an event to wait for, of which it is sent the value."""


class Event:
    """Happens once; whoever waits for it goes on then, or at once if it has happened."""

    __slots__ = ("_sim", "_waiting", "fired", "value")

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._waiting: list[Process] = []
        self.fired, self.value = False, None

    def fire(self, value: Any = None) -> None:
        """Let all go on that wait."""
        if self.fired:
            raise RuntimeError("an event happens only once")
        self.fired, self.value = True, value
        for process in self._waiting:
            self._sim.resume(process, 0.0, value)
        self._waiting.clear()

    def wait(self, process: Process) -> None:
        """Resume ``process`` once it has happened."""
        if self.fired:
            self._sim.resume(process, 0.0, self.value)
        else:
            self._waiting.append(process)


class Simulation:
    """The clock, and what is to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Process, Any]] = []
        self._number, self._stopped = 0, False
        self._ends: dict[Process, Event] = {}

    def start(self, process: Process) -> Event:
        """Begin ``process`` now; the event of its end has what it returns."""
        end = self._ends[process] = Event(self)
        self.resume(process, 0.0, None)
        return end

    def all(self, processes: Iterable[Process]) -> Process:
        """Do all at the same time, until the last has ended; what each has returned."""
        ends = deque([self.start(process) for process in processes])
        values = []
        while ends:
            values.append((yield ends.popleft()))
        return values

    def resume(self, process: Process, secs: float, value: Any) -> None:
        """Let ``process`` go on in ``secs``."""
        self._number += 1
        heapq.heappush(self._heap, (self.now + secs, self._number, process, value))

    def stop(self) -> None:
        """Let :meth:`run` return."""
        self._stopped = True

    def run(self, until: float = math.inf) -> bool:
        """Until ``until``, or :meth:`stop`; False: before that, nothing was left to happen."""
        self._stopped = False
        while self._heap and not self._stopped:
            if self._heap[0][0] > until:
                self.now = until
                return True
            self.now, _, process, value = heapq.heappop(self._heap)
            self._advance(process, value)
        return self._stopped

    def _advance(self, process: Process, value: Any) -> None:
        try:
            wanted = process.send(value)
        except StopIteration as end:
            self._ends.pop(process).fire(end.value)
            return
        if isinstance(wanted, Event):
            wanted.wait(process)
        elif wanted >= 0:
            self.resume(process, wanted, None)
        else:
            raise ValueError(f"a process cannot sleep {wanted} seconds")


class Resource:
    """So many at a time; others wait in line."""

    def __init__(self, sim: Simulation, capacity: int = 1) -> None:
        self._sim, self._free = sim, capacity
        self._line: deque[Event] = deque()
        self.busy_secs = 0.0
        """Of all that used it."""

    def acquire(self) -> Process:
        """Wait for a turn; :meth:`release` ends it."""
        if self._free:
            self._free -= 1
            return
        turn = Event(self._sim)
        self._line.append(turn)
        yield turn

    def release(self) -> None:
        """The next one's turn."""
        if self._line:
            self._line.popleft().fire()
        else:
            self._free += 1

    def use(self, secs: float) -> Process:
        """Wait for a turn of ``secs``."""
        yield from self.acquire()
        yield secs
        self.busy_secs += secs
        self.release()


class Queue:
    """Items in order; who gets from an empty one waits."""

    def __init__(self, sim: Simulation, items: Iterable[Any] = ()) -> None:
        self._sim, self.items = sim, deque(items)
        self._line: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self.items)

    def put(self, item: Any) -> None:
        """To the first that waits, else to the end of the queue."""
        if self._line:
            self._line.popleft().fire(item)
        else:
            self.items.append(item)

    def get(self) -> Process:
        """The oldest item."""
        if self.items:
            return self.items.popleft()
        turn = Event(self._sim)
        self._line.append(turn)
        item = yield turn
        return item

    def get_many(self, count: int) -> Process:
        """The ``count`` oldest, as they come."""
        taken: list[Any] = []
        while len(taken) < count:
            taken.append((yield from self.get()))
        return taken

    def get_all(self) -> Process:
        """All that wait, at least one."""
        first = yield from self.get()
        rest = list(self.items)
        self.items.clear()
        return [first, *rest]
