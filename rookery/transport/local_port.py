"""What ports have in common that only one machine, or a collective, can carry."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from rookery.core.errors import UserError
from rookery.core.ports import End, Port, Relay
from rookery.core.spec import Arrays


class LocalPort:
    """A port without relays."""

    name: ClassVar[str]

    def _stays(self) -> NoReturn:
        raise UserError(f"port {self.name} is memory that one machine shares; use --engine local")

    def for_one(self, client: int) -> Port:
        """There is no other host."""
        self._stays()

    def client_relay(self, arrays: Arrays) -> Relay:
        """There is no other host."""
        self._stays()

    def server_relay(self, end: End) -> Relay:
        """There is no other host."""
        self._stays()
