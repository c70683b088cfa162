"""Cores: recurrent memory between torso and heads.

Shapes: T steps, B environments, F features, H core size. A state is a mapping of leaves
``[B, H]``; ``reset[t]`` marks observations that begin an episode, before which the state is zero.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from rookery.core.spec import ArraySpec
from rookery.core.tensors import Tensors

CoreName = Literal["none", "gru", "lstm"]


class Core(nn.Module):
    """A GRU or LSTM with its state as a mapping of named leaves."""

    def __init__(self, name: CoreName, in_features: int, size: int) -> None:
        super().__init__()
        if name == "none":
            raise ValueError("a core is a gru or an lstm")
        self.name = name
        self.out_features = size
        self.rnn = (nn.GRU if name == "gru" else nn.LSTM)(in_features, size)
        for parameter_name, parameter in self.rnn.named_parameters():
            if "bias" in parameter_name:
                nn.init.zeros_(parameter)
            else:
                nn.init.orthogonal_(parameter)
        leaves = ("h",) if name == "gru" else ("h", "c")
        self.state_spec = {leaf: ArraySpec((size,), np.dtype(np.float32)) for leaf in leaves}

    def forward(self, features: Tensor, state: Tensors, reset: Tensor) -> tuple[Tensor, Tensors]:
        """``features`` [T, B, F], ``state`` [B, H], ``reset`` [T, B] -> outputs [T, B, H], state.

        The sequence is cut where any environment resets and each piece runs as a whole.
        """
        state = _clear(state, reset[0])
        if reset.shape[0] == 1:  # acting: nothing to look for, and nothing that depends on values
            return self._run(features, state)
        cuts = (torch.nonzero(reset[1:].any(1)).flatten() + 1).tolist()
        if not cuts:
            return self._run(features, state)
        outputs = []
        for start, stop in zip([0, *cuts], [*cuts, features.shape[0]], strict=True):
            if start:
                state = _clear(state, reset[start])
            output, state = self._run(features[start:stop], state)
            outputs.append(output)
        return torch.cat(outputs), state

    def _run(self, features: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        if self.name == "gru":
            output, hidden = self.rnn(features, state["h"][None])
            return output, {"h": hidden[0]}
        output, (hidden, cell) = self.rnn(features, (state["h"][None], state["c"][None]))
        return output, {"h": hidden[0], "c": cell[0]}


def _clear(state: Tensors, reset: Tensor) -> Tensors:
    keep = (~reset).to(torch.float32)[:, None]
    return {name: leaf * keep for name, leaf in state.items()}
