"""An environment that writes down each step it makes, with the action it was given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.fault_worlds import Plain


class Counts(Plain):
    """Appends a line to a file of this process for each step: which environment, step and action;
    what it shows is which environment and step."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.path = Path(folder) / f"{os.getpid()}-{id(self)}"
        self.path.touch()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *rest = super().step(action)
        with self.path.open("a") as file:
            file.write(f"{self.total} {int(action)}\n")
        return np.full(3, self.total / 1e6, np.float32), *rest  # type: ignore[return-value]
