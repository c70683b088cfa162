"""A port of which each replica holds the ends of several clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rookery.core.ports import End, Kind, Port
from rookery.core.spec import Arrays, ArraySpec


@dataclass(frozen=True)
class Several:
    """``port``, with ``each`` of its clients in every replica: their ends come as a list."""

    port: Port
    each: int

    @property
    def name(self) -> str:
        """The port's."""
        return self.port.name

    @property
    def kind(self) -> Kind:
        """The port's."""
        return self.port.kind

    @property
    def about(self) -> str:
        """The port's."""
        return self.port.about

    def traffic(self) -> tuple[int, str]:
        """The port's."""
        return self.port.traffic()

    def layout(self) -> dict[str, ArraySpec]:
        """The port's."""
        return self.port.layout()

    def client(self, end: End) -> list[Any]:
        """The ends of a replica, in order."""
        first = end.replica * self.each
        clients = range(first, first + self.each)
        return [self.port.client(replace(end, replica=client)) for client in clients]

    def server(self, end: End) -> Any:
        """The port's, which wakes the replica that holds a client."""
        peers = [peer for peer in end.peers for _ in range(self.each)]
        return self.port.server(replace(end, peers=peers))

    def for_one(self, client: int) -> Port:
        """Never asked: those that hold several are on the host of the server."""
        raise NotImplementedError("several clients of one replica stay on one host")

    def client_relay(self, arrays: Arrays) -> Any:
        """As above."""
        return self.for_one(0)

    def server_relay(self, end: End) -> Any:
        """As above."""
        return self.for_one(0)
