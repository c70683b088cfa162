"""Questions about a checkpoint, by its steps, and their answers, through memory that outlasts both.

The client counts what it has asked and read, the server what it has answered; every count has one
writer. Whoever takes the server's place finds the questions that were not answered.

Shapes: K questions that may wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rookery.core.ports import End, Kind
from rookery.core.spec import Array, Arrays, ArraySpec, under

NUM_QUESTIONS = 8
_INT = np.dtype(np.int64)
_ANSWER = "answer/"


class _Box:
    """Questions and answers, in turn in K places."""

    def __init__(self, end: End) -> None:
        self.end = end
        self.places = len(end.arrays["done"])
        self.asked = end.arrays["asked"]
        """``[0]`` number of questions; their steps follow."""
        self.counts = end.arrays["answered"]
        """``[0]`` number of answers."""
        self.done = end.arrays["done"]
        """``[K, 2]`` number of the question that was answered in this place, from 1; its steps."""
        self.answers_in = under(_ANSWER, end.arrays)

    def question(self, number: int) -> int:
        """The steps of question ``number``."""
        return int(self.asked[1 + number % self.places])


class CallClient(_Box):
    """An :class:`~rookery.core.ports.Asker`."""

    def __init__(self, end: End) -> None:
        super().__init__(end)
        self.read = int(self.counts[0])

    def can_ask(self) -> bool:
        """Whether fewer than all places wait."""
        return bool(self.asked[0] - self.read < self.places)

    def ask(self, steps: int) -> None:
        """Put the question."""
        number = int(self.asked[0])
        self.asked[1 + number % self.places] = steps
        self.asked[0] = number + 1
        self.end.notify_peers()

    def answers(self) -> list[tuple[int, Arrays]]:
        """Copies of the answers that came since the last call; what was skipped has none."""
        found = []
        while (heard := self.hear()) is not None:
            steps, values = heard
            if values is not None:
                found.append((steps, values))
        return found

    def hear(self) -> tuple[int, Arrays | None] | None:
        """The oldest question that was dealt with, and its answer unless it was skipped."""
        if self.read == self.counts[0]:
            return None
        place, steps = self.read % self.places, self.question(self.read)
        self.read += 1
        if self.done[place, 0] != self.read:
            return steps, None
        return steps, {name: array[place].copy() for name, array in self.answers_in.items()}


class CallServer(_Box):
    """An :class:`~rookery.core.ports.Answerer`."""

    @property
    def _next(self) -> int:
        return int(self.counts[0])

    def asked_about(self) -> int | None:
        """The steps of the oldest question that waits."""
        return self.question(self._next) if self.asked[0] > self._next else None

    def answer(self, **values: Array) -> None:
        """Answer it."""
        place = self._next % self.places
        for name, value in values.items():
            self.answers_in[name][place][: len(value)] = value
        self.done[place] = self._next + 1, self.question(self._next)
        self.counts[0] += 1
        self.end.notify_peers()

    def skip(self) -> None:
        """Leave what waits unanswered."""
        self.counts[0] = self.asked[0]

    def skip_one(self) -> None:
        """Leave the oldest that waits unanswered."""
        self.counts[0] += 1

    def answered(self) -> list[int]:
        """The newest questions that were answered, in whichever life, newest last."""
        return [steps for number, steps in sorted(self.done.tolist()) if number]

    def wait(self, timeout_secs: float) -> None:
        """Sleep until somebody may have asked."""
        self.end.own.wait(timeout_secs)


@dataclass(frozen=True)
class CallPort:
    """Questions of one client to one server."""

    kind: ClassVar[Kind] = "call"

    name: str
    about: str
    spec: Mapping[str, ArraySpec]
    """The arrays of one answer."""
    per: str = "checkpoint"
    places: int = NUM_QUESTIONS
    """Questions that may wait; there is memory for as many answers."""

    def traffic(self) -> tuple[int, str]:
        """A question and its answer."""
        return 8 + sum(spec.num_bytes for spec in self.spec.values()), self.per

    def layout(self) -> dict[str, ArraySpec]:
        """Counts, questions and answers."""
        return {
            "asked": ArraySpec((1 + self.places,), _INT),
            "answered": ArraySpec((8,), _INT),
            "done": ArraySpec((self.places, 2), _INT),
            **{f"{_ANSWER}{name}": spec.with_axes(self.places) for name, spec in self.spec.items()},
        }

    def client(self, end: End) -> CallClient:
        """Who asks."""
        return CallClient(end)

    def server(self, end: End) -> CallServer:
        """Who answers."""
        return CallServer(end)

    def for_one(self, client: int) -> CallPort:
        """The same."""
        return self

    def client_relay(self, arrays: Arrays) -> CallSender:
        """Beside who asks."""
        return CallSender(CallServer(End(arrays)), self.spec)

    def server_relay(self, end: End) -> CallReceiver:
        """In the place of who asks."""
        return CallReceiver(CallClient(end), self.spec)


_STEPS = {"steps": ArraySpec((1,), _INT)}
_ANSWERED = {"answered": ArraySpec((1,), _INT)}
"""1, with the answer; 0: it was skipped."""


class CallSender:
    """Carries questions out and answers in; what the one before has left open is skipped, so that
    who asked hears of it and may ask again."""

    def __init__(self, box: CallServer, spec: Mapping[str, ArraySpec]) -> None:
        box.skip()
        self.box, self.sent = box, int(box.counts[0])
        self.sends, self.receives = _STEPS, {**_ANSWERED, **spec}

    def next(self) -> Arrays | None:
        """The oldest question that was not sent."""
        if self.sent == self.box.asked[0]:
            return None
        self.sent += 1
        return {"steps": np.array([self.box.question(self.sent - 1)])}

    def accept(self, frame: Arrays) -> None:
        """An answer; they come in the order of the questions."""
        if self.box.counts[0] == self.sent:
            raise RuntimeError("an answer, and nothing is asked")
        if frame["answered"][0]:
            self.box.answer(**{name: frame[name] for name in self.box.answers_in})
        else:
            self.box.skip_one()


class CallReceiver:
    """Asks what another host asked, and carries the answers back; what somebody else had asked
    before is answered to nobody, and what there is no place for yet is kept."""

    def __init__(self, asker: CallClient, spec: Mapping[str, ArraySpec]) -> None:
        self.asker, self.begun = asker, int(asker.asked[0])
        self.kept: deque[int] = deque()
        self.sends, self.receives = {**_ANSWERED, **spec}, _STEPS

    def next(self) -> Arrays | None:
        """The oldest answer that was not sent."""
        while (heard := self.asker.hear()) is not None:
            self._ask()
            if self.asker.read <= self.begun:
                continue
            _, values = heard
            return {"answered": np.array([int(values is not None)]), **(values or {})}
        return None

    def accept(self, frame: Arrays) -> None:
        """A question."""
        if len(self.kept) == self.asker.places:
            raise RuntimeError(f"more than {self.asker.places} questions at once")
        self.kept.append(int(frame["steps"][0]))
        self._ask()

    def _ask(self) -> None:
        while self.kept and self.asker.can_ask():
            self.asker.ask(self.kept.popleft())
