"""The newest weights in shared memory, with their version.

One writer, many readers, no lock: a sequence number is odd while the writer writes, and a reader
whose copy was overtaken copies again.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from rookery.core.errors import RunFailed
from rookery.core.patience import Patience
from rookery.core.spec import Arrays, ArraySpec
from rookery.core.tensors import Tensors

READ_TIMEOUT_SECS = 30.0

_SEQUENCE, _VERSION = 0, 1


def param_specs(params: Tensors) -> dict[str, ArraySpec]:
    """What must be allocated to publish ``params``."""
    specs = {"header": ArraySpec((2,), np.dtype(np.int64))}
    for name, tensor in params.items():
        dtype = np.dtype(str(tensor.dtype).removeprefix("torch."))
        specs[f"value/{name}"] = ArraySpec(tuple(tensor.shape), dtype)
    return specs


class SharedParams:
    """Both ends: the learner publishes, actors get."""

    def __init__(self, arrays: Arrays) -> None:
        self.header = arrays["header"]
        self.values: Tensors = {
            name.removeprefix("value/"): torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith("value/")
        }
        self._copy: Tensors = {name: torch.empty_like(value) for name, value in self.values.items()}

    def publish(self, version: int, params: Tensors) -> None:
        """Make ``params`` the newest."""
        self.header[_SEQUENCE] += 1
        with torch.no_grad():
            for name, value in self.values.items():
                value.copy_(params[name])
        # Versions start at 0, and so does fresh memory.
        self.header[_VERSION] = version + 1
        self.header[_SEQUENCE] += 1

    def get(self, newer_than: int) -> tuple[int, Tensors] | None:
        """Version and a private copy of the weights, if newer."""
        patience = Patience(READ_TIMEOUT_SECS)
        while True:
            before = int(self.header[_SEQUENCE])
            version = int(self.header[_VERSION]) - 1
            if before % 2 == 0:
                if version <= newer_than:
                    return None
                for name, value in self.values.items():
                    self._copy[name].copy_(value)
                if int(self.header[_SEQUENCE]) == before:
                    return version, self._copy
            if patience.over():
                raise RunFailed("reading weights took too long: the learner died while publishing")
            time.sleep(0)
