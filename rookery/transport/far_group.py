"""A member of a group whose host is another: it asks, and at the head a stand-in meets the others.

The member writes what it gives and counts an ask; the answer is what all together made. The
stand-in is a member like all others there, but never waits: it looks again whenever it is asked
what there is to send.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from rookery.core.errors import RunFailed
from rookery.core.group import Waiting
from rookery.core.patience import Patience
from rookery.core.ports import End, Kind, Port, Relay
from rookery.core.spec import Array, Arrays, ArraySpec
from rookery.transport.shared_group import SLICE_SECS, Meeting, SharedGroup

SUM, GATHER, FIRST = range(3)
_COUNT, _OP, _BYTES, _WIDTH = range(4)
"""Of an ask: its number, what is asked, bytes that are given, bytes of a number or of a row."""
SMALL_BYTES = 4096
"""Up to here only so much is sent, not room for a gradient."""
_INT, _BYTE = np.dtype(np.int64), np.dtype(np.uint8)


class FarMember:
    """A :class:`~rookery.core.group.Group` whose other members are at the head."""

    def __init__(self, arrays: Arrays, end: End, *, rank: int, size: int, timeout_secs: float):
        self.rank, self.size = rank, size
        self.asked, self.answered = arrays["ask"], arrays["answer"]
        self.given, self.made = arrays["given"], arrays["made"]
        self.end, self.timeout_secs = end, timeout_secs
        self.waiting: Waiting = nullcontext

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up over all members."""
        values = tensor.detach().cpu().reshape(-1).numpy()
        total = self._ask(SUM, values, values.itemsize).view(values.dtype)
        with torch.no_grad():
            return tensor.copy_(torch.from_numpy(total.copy()).view(tensor.shape))

    def gather(self, rows: Array) -> list[Array]:
        """Give rows to the first."""
        mine = np.ascontiguousarray(rows, dtype=np.float64)
        self._ask(GATHER, mine, rows.shape[1] * 8)
        return []

    def first(self, values: Array) -> Array:
        """The first member's values."""
        mine = np.ascontiguousarray(values, dtype=np.float64)
        return self._ask(FIRST, mine, 8).view(np.float64).copy()

    def _ask(self, op: int, values: Array, width: int) -> Array:
        """The bytes of the answer."""
        size = values.nbytes
        if size > len(self.given):
            raise ValueError(f"{size} bytes do not fit in {len(self.given)}")
        self.given[:size] = values.reshape(-1).view(np.uint8)
        self.asked[_OP:] = op, size, width
        self.asked[_COUNT] += 1
        self.end.notify_peers()
        with self.waiting():
            self._wait()
        return self.made[: int(self.answered[1])]

    def _wait(self) -> None:
        patience = Patience(self.timeout_secs)
        while self.answered[0] != self.asked[_COUNT]:
            self.end.own.wait(SLICE_SECS)
            if patience.over():
                raise RunFailed(f"the group at the head did not answer in {self.timeout_secs:g} s")


@dataclass(frozen=True)
class FarMemberPort:
    """One member of a group, on a host of its own."""

    name: ClassVar[str] = "gradients"
    kind: ClassVar[Kind] = "group"
    about: ClassVar[str] = "gradients, added up over all that hold them"

    rank: int
    size: int
    num_bytes: int
    """Of the largest vector that is added up."""
    timeout_secs: float

    def traffic(self) -> tuple[int, str]:
        """A gradient, there and back."""
        return 2 * self.num_bytes, "update"

    def layout(self) -> dict[str, ArraySpec]:
        """What is asked and answered."""
        return {
            "ask": ArraySpec((4,), _INT),
            "answer": ArraySpec((2,), _INT),
            "given": ArraySpec((self.num_bytes,), _BYTE),
            "made": ArraySpec((self.num_bytes,), _BYTE),
        }

    def client(self, end: End) -> FarMember:
        """The member."""
        return FarMember(
            end.arrays, end, rank=self.rank, size=self.size, timeout_secs=self.timeout_secs
        )

    def server(self, end: End) -> NoReturn:
        """The others are elsewhere."""
        raise RuntimeError("a member on a host of its own serves nobody")

    def for_one(self, client: int) -> Port:
        """Itself."""
        return self

    def client_relay(self, arrays: Arrays) -> Relay:
        """Beside the member."""
        return AskSender(arrays)

    def server_relay(self, end: End) -> NoReturn:
        """It has no stand-in of its own."""
        raise RuntimeError("the stand-in is the group's")


def _frames(num_bytes: int) -> tuple[dict[str, ArraySpec], dict[str, ArraySpec]]:
    """What a member's host sends, and what the head's sends back."""
    values = {
        "small": ArraySpec((SMALL_BYTES,), _BYTE),
        "values": ArraySpec((num_bytes,), _BYTE),
    }
    return {"ask": ArraySpec((4,), _INT), **values}, {"answer": ArraySpec((2,), _INT), **values}


def _packed(size: int, values: Array) -> Arrays:
    """The first ``size`` bytes of ``values``, in the smaller frame that has room."""
    if not size:
        return {}
    if size > SMALL_BYTES:
        return {"values": values}
    small = np.zeros(SMALL_BYTES, np.uint8)
    small[:size] = values[:size]
    return {"small": small}


def _unpacked(size: int, frame: Mapping[str, Array]) -> Array:
    values = frame["small" if size <= SMALL_BYTES else "values"] if size else _NOTHING
    if not 0 <= size <= len(values):
        raise ValueError(f"{size} bytes were said, {len(values)} are there")
    return values[:size]


_NOTHING = np.zeros(0, np.uint8)


class AskSender:
    """Carries a member's asks out and answers in."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.sent = arrays, 0
        self.sends, self.receives = _frames(len(arrays["given"]))

    def next(self) -> Arrays | None:
        """An ask that was not sent."""
        ask = self.arrays["ask"]
        if ask[_COUNT] == self.sent:
            return None
        self.sent = int(ask[_COUNT])
        return {"ask": ask, **_packed(int(ask[_BYTES]), self.arrays["given"])}

    def accept(self, frame: Arrays) -> None:
        """The answer."""
        number, size = map(int, frame["answer"])
        self.arrays["made"][:size] = _unpacked(size, frame)
        self.arrays["answer"][:] = self.arrays["answer"][0], size
        self.arrays["answer"][0] = number


class StandIn:
    """Meets the others for a member that is elsewhere."""

    def __init__(self, group: SharedGroup, num_bytes: int) -> None:
        self.group, self.number = group, 0
        self.meeting: Meeting[Any] | None = None
        self.receives, self.sends = _frames(num_bytes)

    def accept(self, frame: Arrays) -> None:
        """What the member gives; it meets the others from now on."""
        if self.meeting is not None:
            raise ValueError("the member asked before it was answered")
        self.number, op, size, width = map(int, frame["ask"])
        given = np.array(_unpacked(size, frame))
        if op == SUM:
            self.meeting = self.group.summing(given.view({4: np.float32, 8: np.float64}[width]))
        elif op == GATHER:
            self.meeting = self.group.gathering(given.view(np.float64).reshape(-1, width // 8))
        else:
            self.meeting = self.group.sharing(given.view(np.float64))

    def next(self) -> Arrays | None:
        """The answer, once all have come."""
        if self.meeting is None:
            return None
        try:
            next(self.meeting)
        except StopIteration as end:
            self.meeting = None
            return self._answer(end.value)
        return None

    def _answer(self, made: Any) -> Arrays:
        """What all together made; of rows, which are for the first member, nothing."""
        if isinstance(made, list):
            return {"answer": np.array([self.number, 0])}
        size = made.nbytes
        values = np.zeros(max(size, self.sends["values"].num_bytes), np.uint8)
        values[:size] = made.view(np.uint8)
        return {"answer": np.array([self.number, size]), **_packed(size, values)}
