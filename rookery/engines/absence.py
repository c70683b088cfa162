"""Nobody has joined for a role that the head leaves to hosts, though it is asked for something.

::

    absence = Absence(node, vitals, secs, warn)
    while True:
        if absence.too_long(asked=...):      # it says so, once
            ...
"""

from __future__ import annotations

from collections.abc import Callable

from rookery.core.patience import Patience
from rookery.programs.graph import Node
from rookery.transport.vitals import VitalsReader


class Absence:
    """How long whoever asks ``node`` has asked nobody; never, where the head runs it itself."""

    def __init__(
        self, node: Node, reader: VitalsReader, secs: float, warn: Callable[[str], None]
    ) -> None:
        self.node, self.reader, self.secs, self.warn = node, reader, secs, warn
        self._patience = Patience(secs)
        self._said = False

    def too_long(self, *, asked: bool) -> bool:
        """Whether it has lasted for longer than it may; to be asked every now and then."""
        if not (asked and self.node.left_to_hosts) or self.reader.alive():
            self._patience = Patience(self.secs)
            return False
        if not self._patience.over():
            return False
        if not self._said:
            self._said = True
            name = self.node.name
            self.warn(
                f"no host has joined as {name} for {self.secs:g} s; what it is asked waits for "
                f"`rookery join ... --role {name}`, the run does not"
            )
        return True
