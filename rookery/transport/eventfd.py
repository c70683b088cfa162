"""Waking a process or thread that sleeps until another has done something.

The state itself lies in shared memory; a wake-up only says "look again". A lost or stale one does
no harm, so a process killed at any moment leaves nothing locked.
"""

from __future__ import annotations

import contextlib
import os
import select


class EventFd:
    """A wake-up by Linux's eventfd, passed to children by its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    @classmethod
    def create(cls) -> EventFd:
        """A new one."""
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def notify(self) -> None:
        """Wake who waits, or who will wait next."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.descriptor, 1)

    def wait(self, timeout_secs: float) -> None:
        """Sleep until notified, at most ``timeout_secs``."""
        if self._poll.poll(timeout_secs * 1000):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Let go of the descriptor."""
        os.close(self.descriptor)
