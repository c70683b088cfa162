"""Optimizers by name over a flat parameter vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rookery.core.errors import UserError
from rookery.core.schedule import Schedule, check_schedule, value_at
from rookery.params.flat import FlatParams


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become weights."""

    name: Literal["adam", "rmsprop"] = "adam"
    """Adam, or RMSprop."""
    lr: Schedule = 3e-4
    """Learning rate: a number, or a schedule over absolute steps {start, end, until_steps}."""
    eps: float = 1e-5
    """Added to the denominator."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates."""
    amsgrad: bool = False
    """Adam's AMSGrad variant."""
    alpha: float = 0.99
    """RMSprop's decay rate."""
    max_grad_norm: float | None = 0.5
    """Gradients are scaled to at most this norm; null leaves them."""

    def __post_init__(self) -> None:
        check_schedule("optimizer.lr", self.lr)
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise UserError(
                f"optimizer.max_grad_norm: must be positive, got {self.max_grad_norm}; "
                "null switches clipping off"
            )
        if not all(0 <= beta < 1 for beta in (*self.betas, self.alpha)):
            raise UserError("optimizer: betas and alpha must be at least 0 and below 1")


class FlatOptimizer:
    """An optimizer over :class:`FlatParams`.

    ::

        params.zero_grad()
        loss.backward()
        grad_norm = optimizer.step(lr)
    """

    def __init__(self, config: OptimizerConfig, params: FlatParams) -> None:
        self.config = config
        self.params = params
        lr = value_at(config.lr, 0)
        self.optimizer: torch.optim.Optimizer
        if config.name == "adam":
            self.optimizer = torch.optim.Adam(
                [params.leaf],
                lr=lr,
                betas=config.betas,
                eps=config.eps,
                amsgrad=config.amsgrad,
                fused=True,
            )
        else:
            self.optimizer = torch.optim.RMSprop(
                [params.leaf], lr=lr, alpha=config.alpha, eps=config.eps
            )

    def step(self, lr: float) -> Tensor:
        """Apply the gradient with learning rate ``lr``; returns its norm before clipping."""
        self.optimizer.param_groups[0]["lr"] = lr
        if self.config.max_grad_norm is None:
            norm: Tensor = torch.linalg.vector_norm(self.params.grad)
        else:
            norm = self.params.clip_grad_norm(self.config.max_grad_norm)
        self.optimizer.step()
        return norm

    def state_tensors(self) -> dict[str, Tensor]:
        """The optimizer's statistics by name."""
        state: dict[str, Any] = self.optimizer.state.get(self.params.leaf, {})
        return {name: torch.as_tensor(value) for name, value in state.items()}

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Continue from :meth:`state_tensors`."""
        for name, value in tensors.items():
            if value.ndim and value.shape != self.params.data.shape:
                raise UserError(
                    f"optimizer state '{name}' has {value.numel()} values for "
                    f"{self.params.data.numel()} parameters: it belongs to another network"
                )
        self.optimizer.state[self.params.leaf] = {
            name: value.clone() for name, value in tensors.items()
        }
