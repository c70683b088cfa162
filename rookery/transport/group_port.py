"""The port of a group: members here share memory, those of other hosts have stand-ins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from rookery.core.errors import UserError
from rookery.core.group import Alone, Group
from rookery.core.ports import End, Kind
from rookery.core.spec import Arrays, ArraySpec
from rookery.transport.far_group import FarMemberPort, StandIn
from rookery.transport.shared_group import SharedGroup, group_specs

TIMEOUT_SECS = 600.0


@dataclass(frozen=True)
class GroupPort:
    """Gradients, and whatever else members of a group add up."""

    name: ClassVar[str] = "gradients"
    kind: ClassVar[Kind] = "group"
    about: ClassVar[str] = "gradients, added up over all that hold them"

    role: str
    """What the members are called."""
    size: int
    num_bytes: int
    """Of the largest vector that is added up."""
    timeout_secs: float = TIMEOUT_SECS
    """How long a member waits for the others."""

    def traffic(self) -> tuple[int, str]:
        """A gradient."""
        return self.num_bytes, "update"

    @property
    def _room(self) -> int:
        return -(-self.num_bytes // 64) * 64

    def layout(self) -> dict[str, ArraySpec]:
        """Slots of all members; one alone needs none."""
        return group_specs(self.size, self._room) if self.size > 1 else {}

    def client(self, end: End) -> Group:
        """A member."""
        return Alone() if self.size == 1 else self._member(end)

    def _member(self, end: End) -> SharedGroup:
        return SharedGroup(end.arrays, end, role=self.role, timeout_secs=self.timeout_secs)

    def server(self, end: End) -> Group:
        """Members serve each other."""
        return self.client(end)

    def for_one(self, client: int) -> FarMemberPort:
        """A member on a host of its own."""
        return FarMemberPort(client, self.size, self._room, self.timeout_secs)

    def client_relay(self, arrays: Arrays) -> NoReturn:
        """A member of another host has a port of its own, :meth:`for_one`."""
        raise UserError("a group's memory is one machine's; its members elsewhere have their own")

    def server_relay(self, end: End) -> StandIn:
        """For a member of another host."""
        return StandIn(self._member(end), self._room)
