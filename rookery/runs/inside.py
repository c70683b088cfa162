"""What is inside the network, for TensorBoard: its graph, its weights and their gradients.

On request (``metrics.graph``, ``metrics.histograms``): drawing the graph takes seconds at the
start, histograms some milliseconds at each record.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rookery.core.spec import zeros
from rookery.nets.policy import Policy

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class Inside:
    """Writes about one policy into ``directory``; the file appears with the first thing written."""

    def __init__(
        self,
        directory: Path,
        policy: Policy,
        *,
        graph: bool,
        histograms: bool,
        purge_step: int | None = None,
    ) -> None:
        self.directory, self.policy = directory, policy
        self.graph, self.histograms = graph, histograms
        self.purge_step = purge_step
        self._writer: SummaryWriter | None = None

    def note(self, steps: int) -> None:
        """Write what was asked for, at an absolute step; the graph once."""
        if self.graph:
            self.graph = False
            self._write_graph()
        if self.histograms:
            for name, parameter in self.policy.named_parameters():
                self._histogram(f"weights/{name}", parameter.detach(), steps)
                if parameter.grad is not None:
                    self._histogram(f"gradients/{name}", parameter.grad, steps)

    def _histogram(self, name: str, values: Tensor, steps: int) -> None:
        if torch.isfinite(values).all():
            self._open().add_histogram(name, values.cpu().numpy(), steps)

    def _write_graph(self) -> None:
        network = _Flat(self.policy)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # tracing warns of every shape it takes for fixed
            self._open().add_graph(network, network.example(), use_strict_trace=False)

    def _open(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.directory), purge_step=self.purge_step)
        return self._writer

    def flush(self) -> None:
        """Hand what waits to the system."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what waits and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _Flat(nn.Module):
    """One step of a policy, with inputs in a fixed order, which is what can be traced."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        from rookery.exports.acting import ActingNetwork

        self.network = ActingNetwork(policy)
        self.device = policy.device

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """All outputs."""
        return tuple(self.network(dict(zip(self.network.inputs, inputs, strict=True))).values())

    def example(self) -> tuple[Tensor, ...]:
        """One row of each input."""
        rows = zeros({name: spec.with_axes(1) for name, spec in self.network.inputs.items()})
        return tuple(torch.from_numpy(row).to(self.device) for row in rows.values())
