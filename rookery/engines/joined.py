"""What the replicas of a joined host share with their side of the network link.

At the head each of them has a place among the replicas of its node. Here there is, for each edge of
each, memory for one client, in which ends and relays are as everywhere. Where others call a role
that joined, the memory that it serves is here, and relays stand for who asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rookery.carriers.shared_memory import SharedArena
from rookery.core.ports import End, InTurn, Relay, Wakeup
from rookery.core.spec import Arrays, ArraySpec, under
from rookery.engines.assemble import Wired, layouts
from rookery.programs.graph import Edge, Node, Program
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


def used_edges(program: Program, node: Node) -> Iterator[tuple[int, Edge, int]]:
    """The edges by which ``node`` reaches others, and each part of them that a place may use,
    numbered."""
    for number, edge, part in _numbered(program):
        if edge.source == node.name and edge.port.kind != "memory":
            yield number, edge, part


def served_edges(program: Program, node: Node) -> Iterator[tuple[int, Edge]]:
    """The edges by which others call ``node``, numbered; each has one client."""
    for number, edge, _ in _numbered(program):
        if node.may_join and edge.target == node.name:
            yield number, edge


def _numbered(program: Program) -> Iterator[tuple[int, Edge, int]]:
    """All parts of all edges: the same numbers at the head and at hosts."""
    parts = [(edge, part) for edge in program.edges for part in range(program.num_parts(edge))]
    for index, (edge, part) in enumerate(parts):
        yield index * MOST_PLACES, edge, part


def relays_at_head(wired: Wired, node: Node, places: Sequence[int]) -> list[Carried]:
    """In the place of the replicas of ``node`` that one host has."""
    stand_in = [
        Carried(
            start + place,
            edge.port.server_relay(wired.client_end(edge, place, part=part)),
            edge.port.kind == "cell",
        )
        for start, edge, part in used_edges(wired.program, node)
        for place in _apart(edge, _in_part(wired.program, edge, part, places))
    ]
    calling = [
        Carried(
            start, edge.port.client_relay(wired.memory(edge)), False, wired.wakeups[edge.source][:1]
        )
        for start, edge in served_edges(wired.program, node)
    ]
    return stand_in + calling


def _in_part(program: Program, edge: Edge, part: int, places: Sequence[int]) -> list[int]:
    """Those of ``places`` that use this part of ``edge``."""
    return [place for place in places if part in program.parts_of(edge, place)]


def _apart(edge: Edge, places: Sequence[int]) -> Sequence[int]:
    """The places that have memory of their own; all of a host read the same newest weights."""
    shared = edge.port.kind == "cell" and edge.port.for_one(0) is edge.port
    return places[:1] if shared else places


class JoinedReplicas:
    """Memory and wake-ups of the replicas of ``node`` at ``places``, the same in every process of
    the host."""

    def __init__(
        self,
        program: Program,
        node: Node,
        places: Sequence[int],
        arena: SharedArena,
        link: EventFd,
        wakeups: Mapping[int, EventFd],
    ) -> None:
        """``link`` wakes who carries frames, ``wakeups`` each replica."""
        self.program, self.node, self.places = program, node, places
        self.arena, self.link, self.wakeups = arena, link, wakeups
        served = layouts(program, _served(program, node))
        arrays = {name: array for name, array in arena.arrays.items() if name in served}
        self.wired = Wired(program, arrays, self._all_wakeups(), dict(self._ends()))

    @classmethod
    def create(cls, program: Program, node: Node, places: Sequence[int]) -> JoinedReplicas:
        """Allocate everything (in the driver)."""
        wakeups = {place: EventFd.create() for place in places}
        arena = SharedArena.create(_layouts(program, node, places))
        return cls(program, node, places, arena, EventFd.create(), wakeups)

    @classmethod
    def attach(
        cls, program: Program, node: Node, places: Sequence[int], fds: Mapping[str, Any]
    ) -> JoinedReplicas:
        """Find everything by the descriptors inherited (in a child)."""
        arena = SharedArena(fds["arena"], _layouts(program, node, places))
        wakeups = dict(zip(places, map(EventFd, fds["wakeups"]), strict=True))
        return cls(program, node, places, arena, EventFd(fds["link"]), wakeups)

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
        """Beside the replicas."""
        beside = [
            Carried(
                start + place,
                edge.port.for_one(place).client_relay(self.memory(edge, place, part)),
                edge.port.kind == "cell",
                [self.wakeups[place]],
            )
            for start, edge, part in used_edges(self.program, self.node)
            for place in _apart(edge, _in_part(self.program, edge, part, self.places))
        ]
        asking = [
            Carried(start, edge.port.server_relay(self.wired.client_end(edge, 0)), False)
            for start, edge in served_edges(self.program, self.node)
        ]
        return beside + asking

    def memory(self, edge: Edge, place: int, part: int = 0) -> Arrays:
        """What the replica at ``place`` has of one part of an ``edge`` that it uses."""
        among = _apart(edge, _in_part(self.program, edge, part, self.places))
        apart = place if place in among else among[0]
        return under(_prefix(edge, apart, part), self.arena.arrays)

    def _ends(self) -> Iterator[tuple[tuple[str, int, int], Any]]:
        for _, edge, part in used_edges(self.program, self.node):
            for place in _in_part(self.program, edge, part, self.places):
                own = self.wakeups[place]
                end = End(self.memory(edge, place, part), 0, 0, own, [self.link])
                yield (edge.key, place, part), edge.port.for_one(place).client(end)

    def _all_wakeups(self) -> dict[str, list[Wakeup]]:
        """Of every replica: those that are elsewhere are reached over the link."""
        node = self.node
        all_wakeups: dict[str, list[Wakeup]] = {
            each.name: [self.link] * each.replicas for each in self.program.nodes
        }
        all_wakeups[node.name] = [
            self.wakeups.get(replica, InTurn()) for replica in range(node.replicas)
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


def _served(program: Program, node: Node) -> list[Edge]:
    return [edge for _, edge in served_edges(program, node)]


def _layouts(program: Program, node: Node, places: Sequence[int]) -> dict[str, ArraySpec]:
    used = {
        f"{_prefix(edge, place, part)}{name}": spec
        for _, edge, part in used_edges(program, node)
        for place in _apart(edge, _in_part(program, edge, part, places))
        for name, spec in edge.port.for_one(place).layout().items()
    }
    return used | layouts(program, _served(program, node))
