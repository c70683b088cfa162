"""B environments spread over worker processes, for environments that are slow to step.

Each worker steps its share in a SerialVector. Observations, rewards, flags and actions lie in one
block of anonymous shared memory; a step costs one small message to and from each worker. Episodes
are the same as those of one SerialVector over all B environments.

Workers are fresh interpreters (never forked, never the user's ``__main__``); they die with us.

Shapes: B environments.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.core.errors import EnvironmentFault, UserError
from rookery.core.spec import Array, Arrays, ArraySpec, LeafSpec, LeafSpecs
from rookery.envs import process_link as link_
from rookery.envs.episode_log import join_states, require_header, split_state, state_header
from rookery.envs.process_link import Link, LinkClosedError
from rookery.envs.timeout import certain_secs
from rookery.envs.transition import StepResult

if TYPE_CHECKING:
    from rookery.envs.make import EnvConfig

START_TIMEOUT_SECS = 120.0
"""A worker may take this long to import and build its environments."""
LOAD_TIMEOUT_SECS = 600.0
"""A worker may take this long to play saved episodes again."""
GRACE_SECS = 2.0
"""Longer than the worker's own deadline, whose message names the environment."""
_CLOSE_SECS = 2.0

_FLOAT = np.dtype(np.float64)
_BOOL = np.dtype(np.bool_)
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class WorkerTracebackError(Exception):
    """The traceback of a worker, as text; the cause of the EnvironmentFault it led to."""


@dataclass(slots=True)
class _Worker:
    """A worker process, and the rows of the batch that it steps."""

    index: int
    first_row: int
    num_envs: int
    process: subprocess.Popen[bytes]
    link: Link

    def describe(self, first_env: int) -> str:
        first = first_env + self.first_row
        return (
            f"worker {self.index} (pid {self.process.pid}, environments {first} to "
            f"{first + self.num_envs - 1})"
        )


class ProcessVector:
    """Steps ``num_envs`` environments of ``config`` in ``config.num_workers`` processes."""

    def __init__(
        self,
        config: EnvConfig,
        *,
        run_seed: int,
        num_envs: int,
        first_env: int = 0,
        info_keys: tuple[str, ...] = (),
        role: str = "env",
    ) -> None:
        self._name = config.id
        self._first_env = first_env
        self._timeout_secs = certain_secs(config.step_timeout_secs) + GRACE_SECS
        self.num_envs = num_envs
        self._workers: list[_Worker] = []
        self._stop = weakref.finalize(self, _stop, self._workers)
        self._memory_fd = os.memfd_create("rookery-envs")
        try:
            start = {
                "config": asdict(config),
                "run_seed": run_seed,
                "first_env": first_env,
                "info_keys": info_keys,
                "role": role,
            }
            self._start_workers(min(config.num_workers, num_envs), start)
            self.obs_leaves, self.action_leaf = self._agree_on_leaves()
            self._share_memory(info_keys)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(self._memory_fd)
        self._valid = np.ones(num_envs, np.bool_)
        self._begun = False
        self.lost_episodes = np.zeros(num_envs, np.bool_)
        """Rows whose episode the last :meth:`load_state_dict` could not repeat: they begin anew."""

    obs_leaves: LeafSpecs
    action_leaf: LeafSpec

    def reset(self) -> Arrays:
        """Begin a new episode in every environment; observations ``[B, ...]``."""
        self._ask_all(link_.RESET, "reset")
        self._begun = True
        return self._obs

    def step(self, actions: Array) -> StepResult:
        """Step every environment with ``actions`` ``[B, ...]``."""
        np.copyto(self._action, actions)
        answers = self._ask_all(link_.STEP, "step")
        return StepResult(
            obs=self._obs,
            reward=self._shared["reward"],
            terminated=self._shared["terminated"],
            truncated=self._shared["truncated"],
            valid=self._valid,
            reset=self._shared["reset"],
            final_obs=self._final if b"\1" in answers else None,
            info=self._info,
        )

    def state_dict(self) -> tuple[Arrays, dict[str, Any]] | None:
        """The state that a SerialVector over the same environments would have."""
        if not self._begun:
            return None
        answers = self._ask_all(link_.SAVE, "saving the environments")
        states = [link_.unpack_arrays(answer)[0] for answer in answers]
        return join_states(states), state_header(self.num_envs)

    def load_state_dict(self, arrays: Arrays, data: dict[str, Any]) -> Arrays:
        """Repeat the saved episodes; returns the observations to act on next."""
        require_header(data, self.num_envs, self._name)
        payloads = []
        for worker in self._workers:
            share = split_state(arrays, worker.first_row, worker.first_row + worker.num_envs)
            payloads.append(link_.pack_arrays(share, state_header(worker.num_envs)))
        answers = self._ask_all(link_.LOAD, "resuming", payloads, LOAD_TIMEOUT_SECS)
        lost = [link_.unpack_arrays(answer)[0]["lost"] for answer in answers]
        self.lost_episodes = np.concatenate(lost)
        self._begun = True
        return self._obs

    def close(self) -> None:
        """Stop the workers."""
        self._stop()

    # Starting.

    def _start_workers(self, num_workers: int, start: dict[str, Any]) -> None:
        start |= {
            "parent_pid": os.getpid(),
            # The signal comes when the *thread* that started the worker ends.
            "die_with_parent": threading.current_thread() is threading.main_thread(),
        }
        first_row = 0
        for index in range(num_workers):
            share = (self.num_envs - first_row) // (num_workers - index)
            payload = _encode_start(start | {"first_row": first_row, "num_envs": share})
            process, link = _spawn(self._memory_fd)
            worker = _Worker(index, first_row, share, process, link)
            self._workers.append(worker)
            self._send(worker, link_.START, payload)
            first_row += share

    def _agree_on_leaves(self) -> tuple[LeafSpecs, LeafSpec]:
        """What the workers say their environments look like; they must all say the same."""
        answers = [
            self._receive(worker, "starting", START_TIMEOUT_SECS) for worker in self._workers
        ]
        for worker, answer in zip(self._workers, answers, strict=True):
            if answer != answers[0]:
                raise self._failure(
                    f"{worker.describe(self._first_env)} of {self._name} has other spaces than "
                    "worker 0; all environments of a run must have the same"
                )
        return link_.unpack_leaves(answers[0])

    def _share_memory(self, info_keys: tuple[str, ...]) -> None:
        specs = {"action": self.action_leaf.array}
        for group in ("obs", "final"):
            specs |= {f"{group}/{name}": leaf.array for name, leaf in self.obs_leaves.items()}
        specs |= {f"info/{key}": ArraySpec((), _FLOAT) for key in info_keys}
        specs["reward"] = ArraySpec((), _FLOAT)
        specs |= {name: ArraySpec((), _BOOL) for name in ("terminated", "truncated", "reset")}
        layout = {name: spec.with_axes(self.num_envs) for name, spec in specs.items()}
        link_.allocate(self._memory_fd, layout)
        self._shared = link_.map_arrays(self._memory_fd, layout)
        self._action = self._shared["action"]
        self._obs, self._final, self._info = (
            {name[len(group) :]: a for name, a in self._shared.items() if name.startswith(group)}
            for group in ("obs/", "final/", "info/")
        )
        payload = link_.encode_specs(layout)
        self._ask_all(link_.LAYOUT, "starting", [payload] * len(self._workers), START_TIMEOUT_SECS)

    # Talking to the workers.

    def _ask_all(
        self,
        kind: bytes,
        what: str,
        payloads: list[bytes] | None = None,
        timeout_secs: float | None = None,
    ) -> list[bytes]:
        """Send every worker a message and wait for all their answers."""
        if not self._workers:
            raise RuntimeError(f"the environments of {self._name} are closed")
        for position, worker in enumerate(self._workers):
            self._send(worker, kind, payloads[position] if payloads else b"")
        timeout = self._timeout_secs if timeout_secs is None else timeout_secs
        return [self._receive(worker, what, timeout) for worker in self._workers]

    def _send(self, worker: _Worker, kind: bytes, payload: bytes) -> None:
        try:
            worker.link.send(kind, payload)
        except LinkClosedError as error:
            raise self._lost(worker, "between two steps") from error

    def _receive(self, worker: _Worker, what: str, timeout_secs: float) -> bytes:
        try:
            kind, payload = worker.link.receive(timeout_secs)
        except LinkClosedError as error:
            raise self._lost(worker, f"in {what}") from error
        except TimeoutError as error:
            longer = " or raise env.step_timeout_secs" if what in ("step", "reset") else ""
            raise self._failure(
                f"{worker.describe(self._first_env)} of {self._name} did not return from {what} "
                f"within {timeout_secs:g} s; fix the environment{longer}"
            ) from error
        if kind == link_.FAULT:
            told = json.loads(payload)
            raise self._told(worker, told, what) from WorkerTracebackError(told["traceback"])
        return payload

    def _told(self, worker: _Worker, told: dict[str, str], what: str) -> UserError:
        """The error that a worker reported before it ended."""
        fault, message = self._failure(told["message"]), told["message"]
        if told["kind"] == "user":
            return UserError(message)
        if told["kind"] == "worker":
            where = worker.describe(self._first_env)
            return EnvironmentFault(
                f"{where} of {self._name} failed with {message} in {what}; see its traceback"
            )
        return fault

    def _lost(self, worker: _Worker, when: str) -> EnvironmentFault:
        """The fault of a worker whose socket closed without a word."""
        try:
            code = worker.process.wait(timeout=_CLOSE_SECS)
        except subprocess.TimeoutExpired:
            how = "closed its socket"
        else:
            how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        remedy = "run again" + ("; the system may have run out of memory" if "KILL" in how else "")
        return self._failure(
            f"{worker.describe(self._first_env)} of {self._name} {how} {when}; {remedy}"
        )

    def _failure(self, message: str) -> EnvironmentFault:
        """Nothing can go on from here: stop every worker before the fault is raised."""
        self.close()
        return EnvironmentFault(message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _encode_start(start: dict[str, Any]) -> bytes:
    try:
        return json.dumps(start).encode()
    except TypeError as error:
        raise UserError(
            f"env.backend=process: env.kwargs and env.wrappers must be plain data ({error}); "
            "build such objects in a factory and give env.id='module:factory'"
        ) from error


def _spawn(memory_fd: int) -> tuple[subprocess.Popen[bytes], Link]:
    """A new worker process and our side of its socket."""
    ours, theirs = socket.socketpair()
    path = [entry or os.getcwd() for entry in sys.path]
    environment = os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-P", "-m", "rookery.envs.process_worker"]
    with theirs:
        process = subprocess.Popen(
            [*command, str(theirs.fileno()), str(memory_fd)],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=(theirs.fileno(), memory_fd),
        )
    return process, Link(ours)


def _stop(workers: list[_Worker]) -> None:
    """Let every worker close its environments, and kill what does not end by itself."""
    for worker in workers:
        try:
            worker.link.send(link_.CLOSE)
        except LinkClosedError:
            continue
    for worker in workers:
        worker.link.close()
    give_up = time.monotonic() + _CLOSE_SECS
    for worker in workers:
        try:
            worker.process.wait(timeout=max(give_up - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
    workers.clear()
