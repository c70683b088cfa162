"""What the actors of a joined host share with their side of the network link.

At the head each of them has a place among the replicas of the program. Here there is, for each edge
of each, memory for one client, in which ends and relays are as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rookery.carriers.shared_memory import SharedArena
from rookery.core.ports import End, InTurn, Relay, Wakeup
from rookery.core.spec import Arrays, ArraySpec, under
from rookery.engines.assemble import Wired
from rookery.programs.graph import Edge, Program
from rookery.transport.eventfd import EventFd

MOST_PLACES = 1 << 16


class Carried(NamedTuple):
    """A relay of one place, under the number that it has on both sides."""

    number: int
    relay: Relay
    first: bool
    """Its frames go before those of others: who is let go on finds the newest weights."""
    wakes: Sequence[Wakeup] = ()
    """Who waits for what it is told."""


def carried_edges(program: Program) -> Iterator[tuple[int, Edge, int]]:
    """The edges that join those who act to others, and each part of them that a place may use,
    numbered."""
    acting, number = program.acting.name, 0
    for edge in program.edges:
        if edge.source == acting and edge.port.kind != "memory":
            for part in range(program.num_parts(edge)):
                yield number, edge, part
                number += MOST_PLACES


def relays_at_head(wired: Wired, places: Sequence[int]) -> list[Carried]:
    """In the place of the actors of one host."""
    return [
        Carried(
            start + place,
            edge.port.server_relay(wired.client_end(edge, place, part=part)),
            edge.port.kind == "cell",
        )
        for start, edge, part in carried_edges(wired.program)
        for place in _apart(edge, _in_part(wired.program, edge, part, places))
    ]


def _in_part(program: Program, edge: Edge, part: int, places: Sequence[int]) -> list[int]:
    """Those of ``places`` that use this part of ``edge``."""
    return [place for place in places if part in program.parts_of(edge, place)]


def _apart(edge: Edge, places: Sequence[int]) -> Sequence[int]:
    """The places that have memory of their own; all of a host read the same newest weights."""
    shared = edge.port.kind == "cell" and edge.port.for_one(0) is edge.port
    return places[:1] if shared else places


class JoinedActors:
    """Memory and wake-ups of the actors at ``places``, the same in every process of the host."""

    def __init__(
        self,
        program: Program,
        places: Sequence[int],
        arena: SharedArena,
        link: EventFd,
        wakeups: Mapping[int, EventFd],
    ) -> None:
        """``link`` wakes who carries frames, ``wakeups`` each actor."""
        self.program, self.places = program, places
        self.arena, self.link, self.wakeups = arena, link, wakeups
        self.wired = Wired(program, {}, self._all_wakeups(), dict(self._ends()))

    @classmethod
    def create(cls, program: Program, places: Sequence[int]) -> JoinedActors:
        """Allocate everything (in the driver)."""
        wakeups = {place: EventFd.create() for place in places}
        arena = SharedArena.create(_layouts(program, places))
        return cls(program, places, arena, EventFd.create(), wakeups)

    @classmethod
    def attach(
        cls, program: Program, places: Sequence[int], fds: Mapping[str, Any]
    ) -> JoinedActors:
        """Find everything by the descriptors inherited (in a child)."""
        arena = SharedArena(fds["arena"], _layouts(program, places))
        wakeups = dict(zip(places, map(EventFd, fds["wakeups"]), strict=True))
        return cls(program, places, arena, EventFd(fds["link"]), wakeups)

    def descriptors(self) -> dict[str, Any]:
        """What a child needs to :meth:`attach`."""
        return {
            "arena": self.arena.descriptor,
            "link": self.link.descriptor,
            "wakeups": [self.wakeups[place].descriptor for place in self.places],
        }

    def pass_fds(self) -> list[int]:
        """Descriptors that a child must inherit."""
        wakeups = [wakeup.descriptor for wakeup in self.wakeups.values()]
        return [self.arena.descriptor, self.link.descriptor, *wakeups]

    def relays(self) -> list[Carried]:
        """Beside the actors."""
        return [
            Carried(
                start + place,
                edge.port.for_one(place).client_relay(self.memory(edge, place, part)),
                edge.port.kind == "cell",
                [self.wakeups[place]],
            )
            for start, edge, part in carried_edges(self.program)
            for place in _apart(edge, _in_part(self.program, edge, part, self.places))
        ]

    def memory(self, edge: Edge, place: int, part: int = 0) -> Arrays:
        """What the actor at ``place`` has of one part of ``edge``."""
        among = _apart(edge, _in_part(self.program, edge, part, self.places))
        apart = place if place in among else among[0]
        return under(_prefix(edge, apart, part), self.arena.arrays)

    def _ends(self) -> Iterator[tuple[tuple[str, int, int], Any]]:
        for _, edge, part in carried_edges(self.program):
            for place in _in_part(self.program, edge, part, self.places):
                own = self.wakeups[place]
                end = End(self.memory(edge, place, part), 0, 0, own, [self.link])
                yield (edge.key, place, part), edge.port.for_one(place).client(end)

    def _all_wakeups(self) -> dict[str, list[Wakeup]]:
        """Of every replica: those that are elsewhere are reached over the link."""
        acting = self.program.acting
        all_wakeups: dict[str, list[Wakeup]] = {
            node.name: [self.link] * node.replicas for node in self.program.nodes
        }
        all_wakeups[acting.name] = [
            self.wakeups.get(replica, InTurn()) for replica in range(acting.replicas)
        ]
        return all_wakeups

    def close(self) -> None:
        """Let go of all descriptors."""
        self.arena.close()
        self.link.close()
        for wakeup in self.wakeups.values():
            wakeup.close()


def _prefix(edge: Edge, place: int, part: int) -> str:
    return f"{edge.key}/{place}/{part}/"


def _layouts(program: Program, places: Sequence[int]) -> dict[str, ArraySpec]:
    return {
        f"{_prefix(edge, place, part)}{name}": spec
        for _, edge, part in carried_edges(program)
        for place in _apart(edge, _in_part(program, edge, part, places))
        for name, spec in edge.port.for_one(place).layout().items()
    }
