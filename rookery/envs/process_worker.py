"""One worker process of a ProcessVector; started as a module, never by fork.

Its arguments are two inherited file descriptors: the socket and the shared memory. It steps its
share of the environments in a SerialVector and leaves results in its rows of the shared arrays.
It ends when the socket does, and the kernel kills it when its parent dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any

import numpy as np

from rookery.core.errors import EnvironmentFault, UserError
from rookery.core.spec import Arrays
from rookery.envs import process_link as link_
from rookery.envs.atari import AtariConfig
from rookery.envs.faults import one_line
from rookery.envs.make import EnvConfig, make_env
from rookery.envs.process_link import Link, LinkClosedError
from rookery.envs.serial import SerialVector
from rookery.envs.transition import StepResult

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve until the parent closes the socket."""
    socket_fd, memory_fd = (int(argument) for argument in arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, lambda *_: None)  # and so is what ends the whole job
    link = Link(socket.socket(fileno=socket_fd))
    try:
        _serve(link, memory_fd)
    except LinkClosedError:
        return 0
    except BaseException as error:
        told = {
            "message": str(error) if isinstance(error, UserError) else one_line(error),
            "kind": _kind(error),
            "traceback": traceback.format_exc(),
        }
        with contextlib.suppress(LinkClosedError):  # the parent has heard of another's and is gone
            link.send(link_.FAULT, json.dumps(told).encode())
        return 1
    return 0


def _kind(error: BaseException) -> str:
    """How the parent is to raise it."""
    if isinstance(error, EnvironmentFault):
        return "environment"
    return "user" if isinstance(error, UserError) else "worker"


def _serve(link: Link, memory_fd: int) -> None:
    _, payload = link.receive(None)
    start: dict[str, Any] = json.loads(payload)
    _die_with(start["parent_pid"], start["die_with_parent"])
    worker = _Worker(start)
    try:
        link.send(link_.DONE, link_.pack_leaves(worker.envs.obs_leaves, worker.envs.action_leaf))
        _, layout = link.receive(None)
        worker.share(link_.map_arrays(memory_fd, link_.decode_specs(layout)))
        link.send(link_.DONE)
        while True:
            kind, payload = link.receive(None)
            if kind == link_.CLOSE:
                return
            link.send(link_.DONE, worker.answer(kind, payload))
    finally:
        worker.envs.close()


def _die_with(parent_pid: int, by_signal: bool) -> None:
    """Ask the kernel to kill this process when its parent dies, which it may have done already."""
    if by_signal:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise LinkClosedError


class _Worker:
    """The environments of this process and their rows of the shared arrays."""

    def __init__(self, start: dict[str, Any]) -> None:
        atari = AtariConfig(**start["config"].pop("atari"))
        config = EnvConfig(**start["config"], atari=atari)
        self._rows = slice(start["first_row"], start["first_row"] + start["num_envs"])
        self.envs = SerialVector(
            lambda: make_env(config),
            config,
            run_seed=start["run_seed"],
            first_env=start["first_env"] + start["first_row"],
            num_envs=start["num_envs"],
            info_keys=tuple(start["info_keys"]),
            role=start["role"],
        )
        self._shared: Arrays = {}

    def share(self, arrays: Arrays) -> None:
        """Write results into these arrays from now on."""
        self._shared = {name: array[self._rows] for name, array in arrays.items()}

    def answer(self, kind: bytes, payload: bytes) -> bytes:
        """Carry one message out."""
        if kind == link_.STEP:
            return self._step()
        if kind == link_.RESET:
            self._publish("obs", self.envs.reset())
            return b""
        if kind == link_.SAVE:
            state = self.envs.state_dict()
            return b"" if state is None else link_.pack_arrays(*state)
        if kind == link_.LOAD:
            arrays, data = link_.unpack_arrays(payload)
            self._publish("obs", self.envs.load_state_dict(arrays, data))
            return link_.pack_arrays({"lost": self.envs.lost_episodes})
        raise ValueError(f"unknown message {kind!r}")

    def _step(self) -> bytes:
        out: StepResult = self.envs.step(self._shared["action"].copy())
        self._publish("obs", out.obs)
        self._publish("info", out.info)
        for name in ("reward", "terminated", "truncated", "reset"):
            np.copyto(self._shared[name], getattr(out, name))
        if out.final_obs is None:
            return b"\0"
        self._publish("final", out.final_obs)
        return b"\1"

    def _publish(self, group: str, arrays: Arrays) -> None:
        for name, array in arrays.items():
            np.copyto(self._shared[f"{group}/{name}"], array)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
