"""From a program and memory to the ends that each replica holds: the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rookery.core.ports import End, Wakeup
from rookery.core.spec import Arrays, ArraySpec, under
from rookery.programs.graph import Edge, Program
from rookery.programs.place import Ports


def layouts(program: Program, edges: Sequence[Edge] | None = None) -> dict[str, ArraySpec]:
    """The arrays of ``edges``, by default all, each under the name of its edge and part."""
    return {
        f"{prefix_of(edge, part)}{name}": spec
        for edge in (program.edges if edges is None else edges)
        for part in range(program.num_parts(edge))
        for name, spec in edge.port.layout().items()
    }


def prefix_of(edge: Edge, part: int = 0) -> str:
    """What the names of an edge's arrays begin with."""
    return f"{edge.key}/{part}/"


@dataclass(frozen=True, slots=True)
class Wired:
    """A program whose edges are memory."""

    program: Program
    arrays: Arrays
    """Those of :func:`layouts`."""
    wakeups: Mapping[str, Sequence[Wakeup]]
    """Of each replica of each node."""
    elsewhere: Mapping[tuple[str, int, int], Any] = field(default_factory=dict)
    """Ends of edges that are not in this memory, by the edge's key, the replica and the part."""

    def ports_of(self, node: str, replica: int, life: int = 0) -> Ports:
        """The ends that a replica holds."""
        uses: dict[str, Any] = {}
        serves: dict[str, dict[str, Any]] = {}
        for edge in self.program.edges_of(node):
            if edge.source == node:
                ends = [
                    self._client(edge, replica, life, part)
                    for part in self.program.parts_of(edge, replica)
                ]
                uses[edge.port.name] = ends if edge.each else ends[0]
            if edge.target == node and not edge.among_peers:
                part = replica if self.program.num_parts(edge) > 1 else 0
                if not self.memory(edge, part):
                    continue  # another replica serves it, elsewhere
                end = edge.port.server(self._server_end(edge, part, replica, life))
                serves.setdefault(edge.port.name, {})[edge.source] = end
        return Ports(uses, serves)

    def _client(self, edge: Edge, replica: int, life: int, part: int) -> Any:
        if (edge.key, replica, part) in self.elsewhere:
            return self.elsewhere[edge.key, replica, part]
        return edge.port.client(self.client_end(edge, replica, life, part))

    def client_end(self, edge: Edge, replica: int, life: int = 0, part: int | None = None) -> End:
        """What replica ``replica`` of the source holds of ``edge``, or of one part of it."""
        program, own = self.program, self.wakeups[edge.source][replica]
        part = program.parts_of(edge, replica)[0] if part is None else part
        peers = self.wakeups[edge.target]
        return End(
            self.memory(edge, part),
            program.clients_of(edge, part).index(replica),
            life,
            own,
            [peers[part]] if program.num_parts(edge) > 1 else peers,
        )

    def _server_end(self, edge: Edge, part: int, replica: int, life: int) -> End:
        clients = self.program.clients_of(edge, part)
        peers = [self.wakeups[edge.source][client] for client in clients]
        return End(
            self.memory(edge, part), replica, life, self.wakeups[edge.target][replica], peers
        )

    def memory(self, edge: Edge, part: int = 0) -> Arrays:
        """The arrays of one part of ``edge``."""
        return under(prefix_of(edge, part), self.arrays)
