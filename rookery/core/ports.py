"""The doors between roles: what a port is, what its two ends offer, and what a role is.

Roles hold ends of ports; engines decide what carries them. Verbs are fixed: an actor *puts*
rollouts and steps, a learner *samples* them and *publishes* weights, an actor *gets* weights.
Nothing here blocks: where something is not there yet, ``can_*`` says so and ``wait`` sleeps until
it might be, so that one thread can run every role in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rookery.core.records import Rollout
from rookery.core.sequence import Sample, Steps
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.core.tensors import Tensors

if TYPE_CHECKING:
    from rookery.core.update import Update

Kind = Literal["stream", "cell", "call", "group", "memory"]
"""stream: items, each once, in order; cell: the newest value; call: a question and its answer;
group: sums over all members; memory: arrays that all read and write, on one machine only."""


# ---- what a port is ------------------------------------------------------------------------------


class Wakeup(Protocol):
    """Says "look again" to a role that sleeps. A lost or spare one does no harm."""

    def notify(self) -> None:
        """Wake who waits, or who will wait next."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until notified, at most ``timeout_secs``."""
        ...


class InTurn:
    """The wake-up of roles that take turns in one thread: nobody moves meanwhile."""

    def notify(self) -> None:
        """The other's turn comes anyway."""

    def wait(self, timeout_secs: float) -> None:
        """Return at once."""


@dataclass(frozen=True, slots=True)
class End:
    """What one end of an edge is made of."""

    arrays: Arrays
    """The port's layout, allocated."""
    replica: int = 0
    """Which replica of the role at this end."""
    life: int = 0
    """How often that replica was replaced."""
    own: Wakeup = InTurn()
    peers: Sequence[Wakeup] = ()
    """The wake-ups of the replicas at the other end."""

    def notify_peers(self) -> None:
        """Have all at the other end look again."""
        for peer in self.peers:
            peer.notify()


class Relay(Protocol):
    """One side of a port that a network carries.

    At each host there is memory of the port with ordinary ends. A relay gives what the other host
    should know next, as arrays of :attr:`sends`, and takes what comes from there, of
    :attr:`receives`. Whoever carries them keeps their order::

        while (frame := relay.next()) is not None:
            send(pack(frame))
        ...
        relay.accept(unpack(received))
    """

    @property
    def sends(self) -> Mapping[str, ArraySpec]:
        """What :meth:`next` gives some of."""
        ...

    @property
    def receives(self) -> Mapping[str, ArraySpec]:
        """What :meth:`accept` takes some of."""
        ...

    def next(self) -> Arrays | None:
        """What to send; None if there is nothing now.

        Of a stream or call it may be the memory itself: it stays as it is until the other side has
        answered. Cells, which change at any time, are copied at once.
        """
        ...

    def accept(self, frame: Arrays) -> None:
        """What the other side's :meth:`next` gave."""
        ...


class Port(Protocol):
    """A kind of exchange between a client role and a server role, sized for one program."""

    @property
    def name(self) -> str:
        """What roles call it."""
        ...

    @property
    def kind(self) -> Kind:
        """Which links can carry it."""
        ...

    @property
    def about(self) -> str:
        """What passes through it, in a few words."""
        ...

    def traffic(self) -> tuple[int, str]:
        """Bytes that pass, and for each of what: step, rollout, update, episode, evaluation."""
        ...

    def layout(self) -> dict[str, ArraySpec]:
        """The arrays that both ends share."""
        ...

    def client(self, end: End) -> Any:
        """The end of one that uses the port."""
        ...

    def server(self, end: End) -> Any:
        """The end of the one that serves it."""
        ...

    def for_one(self, client: int) -> Port:
        """The same port with only this client, for a host of its own."""
        ...

    def client_relay(self, arrays: Arrays) -> Relay:
        """Beside a client whose host has ``arrays`` of :meth:`for_one`."""
        ...

    def server_relay(self, end: End) -> Relay:
        """Beside the server, in the place of client ``end.replica``."""
        ...


# ---- what a role is ------------------------------------------------------------------------------


class Role(Protocol):
    """One loop runs every role::

    role.start()
    while not role.done():
        if role.ready():
            role.step()
        else:
            role.wait(timeout_secs)
    role.finish()
    role.close()
    """

    def start(self) -> None:
        """Whatever must be there before the first step; after a state was loaded."""
        ...

    def ready(self) -> bool:
        """Whether :meth:`step` can do something now."""
        ...

    def step(self) -> Update | None:
        """Do the next piece of work; what there is to write down of it."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until :meth:`ready` may be true."""
        ...

    def midway(self) -> bool:
        """Whether it has begun what those that act must end before others have their turn."""
        ...

    def done(self) -> bool:
        """Whether those it works with have said that it is over."""
        ...

    def missing(self) -> list[int]:
        """Which of those that act it waits for."""
        ...

    def filling(self) -> tuple[int, int] | None:
        """Steps of the run while there is too little to learn from, which may last, and at how many
        steps it begins to learn; else None."""
        ...

    def answer(self) -> None:
        """Answer the calls that wait, without doing anything else."""
        ...

    def ask_for_parts(self) -> None:
        """A checkpoint is made next: ask those who hold parts of it."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers that it tells of itself."""
        ...

    def finish(self) -> Update | None:
        """The run is over: tell those who follow, and what is left to write down."""
        ...

    def close(self) -> None:
        """Let go of environments and files."""
        ...


class BaseRole:
    """What most roles do not care about."""

    def start(self) -> None:
        """Nothing to prepare."""

    def midway(self) -> bool:
        """A step is whole."""
        return False

    def done(self) -> bool:
        """Only a stop ends it."""
        return False

    def missing(self) -> list[int]:
        """Nobody in particular."""
        return []

    def filling(self) -> tuple[int, int] | None:
        """It learns as soon as it can."""
        return None

    def answer(self) -> None:
        """Nobody calls it."""

    def ask_for_parts(self) -> None:
        """It has all of them."""

    def metrics(self) -> dict[str, float]:
        """Nothing to tell."""
        return {}

    def finish(self) -> Update | None:
        """Nobody follows it, and all is told."""
        return None

    def close(self) -> None:
        """Nothing is open."""


# ---- the ends ------------------------------------------------------------------------------------


class ExperienceSink(Protocol):
    """Where an actor puts its rollouts::

    while running:
        if not sink.can_put():
            sink.wait(timeout_secs)
            continue
        rollout = sink.reserve()      # memory to fill in place
        ...
        sink.put(rollout)             # it is the learner's now
    """

    def can_put(self) -> bool:
        """Whether there is room for one more rollout now."""
        ...

    @property
    def in_parts(self) -> bool:
        """Whether a rollout that was put may have to wait for others before any is learned from."""
        ...

    def unlearned(self) -> bool:
        """Whether this actor has put rollouts of which a checkpoint made now would know nothing."""
        ...

    def reserve(self) -> Rollout:
        """Memory for the next rollout; call only when :meth:`can_put`."""
        ...

    def put(self, rollout: Rollout) -> None:
        """Hand over the reserved rollout."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until there may be room, at most ``timeout_secs``."""
        ...


class ExperienceSource(Protocol):
    """Where a learner takes rollouts from::

    while running:
        if not source.can_sample():
            source.wait(timeout_secs)
            continue
        batch = source.sample()       # [T, all environments]
        ... learn, publish ...
        source.release()              # the memory goes back to the actors
    """

    def can_sample(self) -> bool:
        """Whether a whole batch is there."""
        ...

    def sample(self) -> Rollout:
        """The batch, to be read until :meth:`release`."""
        ...

    def release(self) -> None:
        """Give the batch's memory back to the actors."""
        ...

    def missing(self) -> list[int]:
        """Actors that are waited for."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until more may be there, at most ``timeout_secs``."""
        ...


class StepSink(Protocol):
    """Where an actor puts its steps on the way to replay."""

    def can_put(self) -> bool:
        """Whether there is room for the steps between two looks."""
        ...

    def reserve(self) -> Steps:
        """Memory for one step of each environment, to be filled in place."""
        ...

    def put(
        self,
        steps: Steps,
        episodes: Array,
        *,
        ended: bool,
        valued: bool,
        anew: Array | None = None,
    ) -> None:
        """Hand over the reserved step, and ``[E, ...]`` what ended episodes told.

        ``ended``: ``final_obs`` was filled; ``valued``: ``final_extra`` was; ``anew`` ``[B]``:
        whose episode is not the one that was put before.
        """
        ...

    def total_steps(self) -> int:
        """Steps of all actors so far."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until there may be room, at most ``timeout_secs``."""
        ...


class SequenceSource(Protocol):
    """Where a learner takes sequences from."""

    def can_sample(self) -> bool:
        """Whether a batch is there."""
        ...

    def sample(self) -> Sample:
        """The batch, to be read until :meth:`release`."""
        ...

    def release(self, priorities: Array) -> None:
        """Give the batch back, with the priorities ``[M]`` that its sequences have now."""
        ...

    def progress(self) -> tuple[int, Array]:
        """Steps of the run so far, and ``[E, ...]`` what the episodes told that ended since."""
        ...

    def total_steps(self) -> int:
        """Steps of the run so far, of which nothing may have been sampled."""
        ...

    def filling(self) -> bool:
        """Whether replay takes steps and has nothing to learn from yet, which may last."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until more may be there, at most ``timeout_secs``."""
        ...


class ParamSource(Protocol):
    """Where weights come from."""

    def get(self, newer_than: int, into: Tensors) -> int | None:
        """Copy the weights ``into`` tensors of the same names, if newer; their version."""
        ...


class ParamSink(Protocol):
    """Where weights are published."""

    def publish(self, version: int, params: Tensors) -> None:
        """Make ``params`` what :meth:`ParamSource.get` gives from now on."""
        ...


class Asker(Protocol):
    """Asks something of another role, by the steps of a checkpoint; the answer comes later."""

    def can_ask(self) -> bool:
        """Whether there is room for another question."""
        ...

    def ask(self, steps: int) -> None:
        """Put the question."""
        ...

    def answers(self) -> list[tuple[int, Arrays]]:
        """What was answered since the last call, each with the steps that were asked about."""
        ...

    def hear(self) -> tuple[int, Arrays | None] | None:
        """The oldest question that was dealt with, by its steps, and its answer unless it was
        skipped; for who asks again then, in the place of :meth:`answers`."""
        ...


class Answerer(Protocol):
    """The other end of :class:`Asker`."""

    def asked_about(self) -> int | None:
        """The steps of the oldest question that waits."""
        ...

    def answer(self, **values: Array) -> None:
        """Answer it, each value filling the beginning of its array."""
        ...

    def skip(self) -> None:
        """Leave what waits unanswered."""
        ...

    def answered(self) -> list[int]:
        """The newest questions that were answered, in whichever life, newest last."""
        ...

    def wait(self, timeout_secs: float) -> None:
        """Sleep until somebody may have asked."""
        ...


class ActorStateCell(Protocol):
    """What an actor leaves to the one that takes its place."""

    def save(self, state: Arrays) -> None:
        """In the place of what was there."""
        ...

    def load(self) -> Arrays | None:
        """What the one before left; None if nothing."""
        ...


class ActorStates(Protocol):
    """The actors' states where checkpoints are made."""

    def read(self, actor: int) -> Arrays | None:
        """A copy of what ``actor`` left last."""
        ...

    def write(self, actor: int, state: Arrays) -> bool:
        """What the next ``actor`` begins with; False if it is of another kind."""
        ...

    @property
    def num_actors(self) -> int:
        """For whom there is room."""
        ...
