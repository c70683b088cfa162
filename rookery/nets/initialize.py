"""Weight initialisers by name."""

from __future__ import annotations

import math
from typing import Literal

from torch import nn

Initializer = Literal["orthogonal", "uniform", "normal", "xavier"]


def initialize(module: nn.Module, name: Initializer, gain: float = math.sqrt(2.0)) -> None:
    """Initialise every weight of ``module`` (matrices and kernels by ``name``, biases to zero).

    ``uniform`` and ``normal`` have the variance ``gain^2 / (3 fan_in)`` and ``gain^2 / fan_in``.
    """
    for parameter_name, parameter in module.named_parameters():
        if parameter.ndim < 2:
            if "bias" in parameter_name:
                nn.init.zeros_(parameter)
            continue
        fan_in = parameter[0].numel()
        if name == "orthogonal":
            nn.init.orthogonal_(parameter, gain)
        elif name == "xavier":
            nn.init.xavier_uniform_(parameter, gain)
        elif name == "uniform":
            bound = gain / math.sqrt(fan_in)
            nn.init.uniform_(parameter, -bound, bound)
        else:
            nn.init.normal_(parameter, std=gain / math.sqrt(fan_in))
