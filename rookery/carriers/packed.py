"""Arrays side by side in one buffer, to be sent as one message."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rookery.carriers.shared_memory import layout
from rookery.core.spec import Arrays, ArraySpec


class Packed:
    """The arrays of ``specs`` as views into ``buffer`` (uint8): what is written in them is sent."""

    def __init__(self, specs: Mapping[str, ArraySpec]) -> None:
        offsets, size = layout(specs)
        self.buffer = np.zeros(size, np.uint8)
        self.arrays: Arrays = {
            name: self.buffer[offsets[name] : offsets[name] + spec.num_bytes]
            .view(spec.dtype)
            .reshape(spec.shape)
            for name, spec in specs.items()
        }
