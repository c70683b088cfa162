"""What both ends of the network link share: gRPC, as ``wire.proto`` describes it.

:mod:`rookery.carriers.grpc_head` listens, :mod:`rookery.carriers.grpc_host` dials.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from rookery.core.hosts import State, missing_extra

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # or every bad handshake is a line of its own
try:
    import google.protobuf  # noqa: F401  as may this
    import grpc  # noqa: F401  the extra may be missing
except ImportError as error:
    raise missing_extra(error) from error

CONTROL, EXCHANGE = "rookery.wire.Control", "rookery.wire.Exchange"
SESSION, AUTHORIZATION = "rookery-session", "authorization"
CONTROL_SECS = 60.0
"""The longest deadline of a control call."""
CUT_SECS = 5.0
"""A peer that takes nothing for so long, when an exchange is to end, is cut off."""
STATES: tuple[State, ...] = ("run", "wait", "stop", "over")
"""In the order of ``Orders.State``."""
_MOST_SAID = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a peer may take, and how long it may be silent."""

    hosts: int = 64
    """Exchanges at once."""
    connections: int = 256
    control_calls: int = 16
    """At once."""
    message_bytes: int = 64 << 20
    """Of one message; see :func:`rookery.carriers.wire.most_bytes`."""
    ping_secs: float = 5.0
    """A connection that was silent for so long is asked whether it lives,"""
    ping_timeout_secs: float = 5.0
    """and is cut if it does not answer in this time."""
    handshake_secs: float = 10.0
    idle_secs: float = 10.0
    """A connection without any call for so long is closed: it may be of someone without a token."""

    def options(self) -> list[tuple[str, Any]]:
        """As gRPC calls them, for either side."""
        return [
            ("grpc.max_receive_message_length", self.message_bytes),
            ("grpc.max_send_message_length", self.message_bytes),
            ("grpc.keepalive_time_ms", int(self.ping_secs * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.ping_timeout_secs * 1000)),
            ("grpc.http2.ping_timeout_ms", int(self.ping_timeout_secs * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
        ]


def said(text: str, most: int = _MOST_SAID) -> str:
    """A peer's words as one line that does nothing to a terminal."""
    return "".join(char if char.isprintable() else " " for char in text[:most])
