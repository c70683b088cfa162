"""JSON messages between a driver and its children, one a line, over a socket pair."""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

Message = dict[str, Any]


class Control:
    """One end of a conversation. :meth:`receive` never blocks; sending may for a moment."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._pending = b""
        self.closed = False

    def send(self, kind: str, **content: Any) -> bool:
        """Send a message; False if the other end is gone, whose last words may still be here."""
        data = json.dumps({"kind": kind, **content}).encode() + b"\n"
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return not self.closed

    def receive(self) -> list[Message]:
        """All messages that have arrived; sets ``closed`` when the other end is gone."""
        messages: list[Message] = []
        while not self.closed:
            try:
                data = self.socket.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.closed = True
                break
            *lines, self._pending = (self._pending + data).split(b"\n")
            messages += [json.loads(line) for line in lines]
        return messages

    def drain(self, timeout_secs: float) -> bool:
        """Drop what arrives until the other end is gone; False if it is not in time."""
        deadline = time.monotonic() + timeout_secs
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while not self.closed and poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
            self.receive()
        return self.closed

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


class Listener:
    """A child's ear: a thread that collects messages, and ends the process with its driver."""

    def __init__(self, control: Control, on_message: Callable[[], None] = lambda: None) -> None:
        self.control = control
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.on_message = on_message
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def _listen(self) -> None:
        stream = self.control.socket.makefile("rb")
        for line in stream:
            self.messages.put(json.loads(line))
            self.on_message()
        # End of file: the driver is gone, and nobody else will stop us.
        os._exit(1)

    def take(self) -> list[Message]:
        """What has arrived since the last call."""
        found: list[Message] = []
        while True:
            try:
                found.append(self.messages.get_nowait())
            except Empty:
                return found

    def wait(self, timeout_secs: float) -> Message | None:
        """The next message, or None after ``timeout_secs``."""
        try:
            return self.messages.get(timeout=timeout_secs)
        except Empty:
            return None
