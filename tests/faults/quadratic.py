"""A hogwild worker on ``|w - target|^2`` with noisy gradients, as a process of its own.

``python -m tests.faults.quadratic DESCRIPTOR WORKER NUM_WORKERS STEPS``
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from rookery.carriers.shared_memory import SharedArena
from rookery.core.spec import ArraySpec
from rookery.params.flat import FlatParams
from rookery.params.hogwild import HogwildMemory, HogwildOptimizer, hogwild_specs
from rookery.params.optimizer import OptimizerConfig

SIZE = 200
LR = 3e-3


def specs(num_workers: int) -> dict[str, ArraySpec]:
    return hogwild_specs(num_workers, SIZE, OptimizerConfig(), {}, shared_statistics=True)


def target() -> torch.Tensor:
    return torch.linspace(-1.0, 1.0, SIZE)


class Weights(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(SIZE))


def main() -> None:
    descriptor, worker, num_workers, steps = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    memory = HogwildMemory(SharedArena(descriptor, specs(num_workers)).arrays)
    params = FlatParams(Weights())
    optimizer: Any = HogwildOptimizer(OptimizerConfig(max_grad_norm=None), params, memory, worker)
    noise = torch.Generator().manual_seed(worker)
    optimizer.pull()
    print("begun", flush=True)
    for _ in range(steps):
        params.grad.copy_(2 * (params.data - target()))
        params.grad.add_(torch.randn(SIZE, generator=noise), alpha=0.5)
        optimizer.step(LR)
    print(max(optimizer.staleness), flush=True)


if __name__ == "__main__":
    main()
