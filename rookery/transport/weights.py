"""The newest weights, with their version.

One writer, many readers, no lock: a sequence number is odd while the writer writes, and a reader
whose copy was overtaken copies again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from rookery.core.errors import RunFailed
from rookery.core.patience import Patience
from rookery.core.ports import End, Kind
from rookery.core.spec import Arrays, ArraySpec, under
from rookery.core.tensors import Tensors

READ_TIMEOUT_SECS = 30.0

_SEQUENCE, _VERSION = 0, 1
_VALUE = "value/"
_INT = np.dtype(np.int64)


class WeightsCell:
    """Both ends: the learner publishes, actors get."""

    def __init__(self, arrays: Arrays) -> None:
        self.header = arrays["header"]
        self.arrays = under(_VALUE, arrays)
        self.values: Tensors = {
            name: torch.from_numpy(array) for name, array in self.arrays.items()
        }

    @property
    def version(self) -> int:
        """Of what was published last; -1 before."""
        return int(self.header[_VERSION]) - 1  # fresh memory is 0

    def publish(self, version: int, params: Tensors) -> None:
        """Make ``params`` the newest."""
        with self._writing(version), torch.no_grad():
            for name, value in self.values.items():
                value.copy_(params[name])

    def publish_arrays(self, version: int, params: Arrays) -> None:
        """The same of arrays, which may be read-only."""
        parts = [(array, params[name]) for name, array in self.arrays.items()]
        with self._writing(version):
            for array, part in parts:
                array[...] = part

    def mend(self) -> None:
        """Go on after somebody who may have died while publishing."""
        self.header[_SEQUENCE] += self.header[_SEQUENCE] % 2

    @contextmanager
    def _writing(self, version: int) -> Iterator[None]:
        self.header[_SEQUENCE] += 1
        yield
        self.header[_VERSION] = version + 1
        self.header[_SEQUENCE] += 1

    @torch.no_grad()
    def get(self, newer_than: int, into: Tensors) -> int | None:
        """Copy the weights ``into`` tensors of the same names, if newer; their version."""
        if self.version <= newer_than and self.header[_SEQUENCE] % 2 == 0:
            return None
        patience = Patience(READ_TIMEOUT_SECS)
        while True:
            before, version = int(self.header[_SEQUENCE]), self.version
            if before % 2 == 0:
                if version <= newer_than:
                    return None
                for name, value in self.values.items():
                    into[name].copy_(value)
                if int(self.header[_SEQUENCE]) == before:
                    return version
            if patience.over():
                raise RunFailed("reading weights took too long: the learner died while publishing")
            time.sleep(0)


@dataclass(frozen=True)
class WeightsPort:
    """Weights with a version: published by the server, got by clients."""

    name: ClassVar[str] = "params"
    kind: ClassVar[Kind] = "cell"
    about: ClassVar[str] = "weights with a version, published and got"

    params: Mapping[str, ArraySpec]
    """What is published, by name."""

    def traffic(self) -> tuple[int, str]:
        """All of it, to each that acts."""
        return sum(spec.num_bytes for spec in self.params.values()), "update"

    def layout(self) -> dict[str, ArraySpec]:
        """A header, and the values."""
        values = {f"{_VALUE}{name}": spec for name, spec in self.params.items()}
        return {"header": ArraySpec((8,), _INT), **values}

    def client(self, end: End) -> WeightsCell:
        """Who gets."""
        return WeightsCell(end.arrays)

    def server(self, end: End) -> WeightsCell:
        """Who publishes."""
        return WeightsCell(end.arrays)

    def for_one(self, client: int) -> WeightsPort:
        """The same."""
        return self

    def client_relay(self, arrays: Arrays) -> WeightsReceiver:
        """Beside who gets."""
        return WeightsReceiver(WeightsCell(arrays), self.params)

    def server_relay(self, end: End) -> WeightsSender:
        """Beside who publishes."""
        return WeightsSender(WeightsCell(end.arrays), self.params)


_HAVE = {"have": ArraySpec((1,), _INT)}


class WeightsReceiver:
    """Asks for weights newer than those it has; the answer comes when there are some."""

    def __init__(self, cell: WeightsCell, params: Mapping[str, ArraySpec]) -> None:
        self.cell, self.asked = cell, False
        self.sends = _HAVE
        self.receives = {"version": ArraySpec((1,), _INT), **params}

    def next(self) -> Arrays | None:
        """The version that is here, once for each answer."""
        if self.asked:
            return None
        self.asked = True
        return {"have": np.array([self.cell.version])}

    def accept(self, frame: Arrays) -> None:
        """Newer weights."""
        self.cell.publish_arrays(int(frame["version"][0]), frame)
        self.asked = False


class WeightsSender:
    """Answers who asks, as soon as there are newer weights.

    Newer than those that were sent from here: whatever else the other side has may be of a learner
    that was further and died.
    """

    def __init__(self, cell: WeightsCell, params: Mapping[str, ArraySpec]) -> None:
        self.cell, self.sent, self.have = cell, -1, -1
        self.asked = False
        self.copy = {name: torch.empty_like(value) for name, value in cell.values.items()}
        self.sends, self.receives = {"version": ArraySpec((1,), _INT), **params}, _HAVE

    def next(self) -> Arrays | None:
        """The weights, if they are newer than those asked about."""
        version = self.cell.get(self.have, self.copy) if self.asked else None
        if version is None:
            return None
        self.asked, self.sent = False, version
        values = {name: value.numpy() for name, value in self.copy.items()}
        return {"version": np.array([version]), **values}

    def accept(self, frame: Arrays) -> None:
        """Who asks has these."""
        self.have, self.asked = min(int(frame["have"][0]), self.sent), True
