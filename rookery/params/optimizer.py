"""Optimizers by name over a flat parameter vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rookery.core.errors import UserError
from rookery.core.schedule import Schedule, check_schedule
from rookery.params.flat import FlatParams

TINY = 1e-30
"""Lost in any sum that matters. Roots of zeros and of numbers below 1e-38, which weights that get
no gradient have, take torch six to forty times as long as others."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become weights."""

    name: Literal["adam", "rmsprop", "sgd", "momentum", "adagrad", "adadelta"] = "adam"
    """Adam, RMSprop, plain gradient descent, the same with momentum, Adagrad, or Adadelta."""
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
    momentum: float = 0.9
    """How much of its last step momentum keeps."""
    rho: float = 0.9
    """Adadelta's decay rate."""
    max_grad_norm: float | None = 0.5
    """Gradients are scaled to at most this norm; null leaves them."""
    average_updates: int = 0
    """What is saved, evaluated and played is the mean of the weights over about this many updates,
    older ones fading; 0: the weights as they are."""

    def __post_init__(self) -> None:
        check_schedule("optimizer.lr", self.lr)
        if self.max_grad_norm is not None and self.max_grad_norm <= 0:
            raise UserError(
                f"optimizer.max_grad_norm: must be positive, got {self.max_grad_norm}; "
                "null switches clipping off"
            )
        if self.average_updates < 0:
            raise UserError(
                f"optimizer.average_updates: must not be negative, got {self.average_updates}"
            )
        if not self.eps > 0:
            raise UserError(f"optimizer.eps: must be positive, got {self.eps}")
        decays = (*self.betas, self.alpha, self.momentum, self.rho)
        if not all(0 <= decay < 1 for decay in decays):
            raise UserError(
                "optimizer: betas, alpha, momentum and rho must be at least 0 and below 1"
            )


_STATISTICS = {
    "adam": ["exp_avg", "exp_avg_sq"],
    "rmsprop": ["square_avg"],
    "sgd": [],
    "momentum": ["momentum_buffer"],
    "adagrad": ["sum"],
    "adadelta": ["square_avg", "acc_delta"],
}
"""By torch.optim's names."""


def statistic_names(config: OptimizerConfig) -> list[str]:
    """What the optimizer keeps of each parameter."""
    largest = ["max_exp_avg_sq"] if config.name == "adam" and config.amsgrad else []
    return [*_STATISTICS[config.name], *largest]


class FlatOptimizer:
    """An optimizer over :class:`FlatParams`, with torch.optim's mathematics.

    ::

        params.zero_grad()
        loss.backward()
        grad_norm = optimizer.step(lr)

    It calls torch's fused kernel on the one vector itself: constructing a ``torch.optim`` object
    imports torch's compiler (seconds at the start of every process), and its ``step`` spends far
    longer on bookkeeping than on a small network. Tests hold it to ``torch.optim``.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        params: FlatParams,
        lr_scales: Sequence[tuple[slice, float]] = (),
    ) -> None:
        """``lr_scales`` are parts of the vector that step so many times as far."""
        self.config = config
        self.params = params
        self.lr_scales = [(part, scale) for part, scale in lr_scales if scale != 1.0]
        self.state = {name: torch.zeros_like(params.data) for name in statistic_names(config)}
        self.state["step"] = torch.zeros((), device=params.data.device)

    @torch.no_grad()
    def step(self, lr: float) -> Tensor:
        """Apply the gradient with learning rate ``lr``; returns its norm before clipping."""
        norm = self._clip()
        self._step_parts(lr, self.params.grad, self.params.data, slice(None))
        return norm

    def _step_parts(self, lr: float, grad: Tensor, data: Tensor, own: slice) -> None:
        """Step the part ``own`` of ``data`` along its ``grad``, each ``lr_scales`` so far."""
        start, stop = own.start or 0, len(data) if own.stop is None else own.stop
        self.state["step"].add_(1)
        for part, scale in parts_between(start, stop, self.lr_scales):
            mine = grad[part.start - start : part.stop - start]
            self._apply(lr * scale, mine, data[part], part)

    def _clip(self) -> Tensor:
        """Clip the gradient; its norm before."""
        if self.config.max_grad_norm is None:
            norm: Tensor = torch.linalg.vector_norm(self.params.grad)
            return norm
        return self.params.clip_grad_norm(self.config.max_grad_norm)

    def _apply(self, lr: float, grad: Tensor, data: Tensor, own: slice) -> None:
        """Step ``data``, of which ``own`` are the statistics, along ``grad``."""
        state = {name: leaf[own] for name, leaf in self.state.items() if name != "step"}
        match self.config.name:
            case "adam":
                self._adam(lr, grad, data, state, self.state["step"])
            case "rmsprop":
                self._rmsprop(lr, grad, data, state["square_avg"])
            case "sgd":
                data.add_(grad, alpha=-lr)
            case "momentum":
                buffer = state["momentum_buffer"].mul_(self.config.momentum).add_(grad)
                data.add_(buffer, alpha=-lr)
            case "adagrad":
                squares = state["sum"].addcmul_(grad, grad)
                self._divided(lr, grad, data, squares)
            case "adadelta":
                self._adadelta(lr, grad, data, state["square_avg"], state["acc_delta"])

    def _adam(
        self, lr: float, grad: Tensor, data: Tensor, state: dict[str, Tensor], step: Tensor
    ) -> None:
        config = self.config
        torch._fused_adam_(
            [data],
            [grad],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [state["max_exp_avg_sq"]] if config.amsgrad else [],
            [step],
            lr=lr,
            beta1=config.betas[0],
            beta2=config.betas[1],
            weight_decay=0.0,
            eps=config.eps,
            amsgrad=config.amsgrad,
            maximize=False,
        )

    def _rmsprop(self, lr: float, grad: Tensor, data: Tensor, average: Tensor) -> None:
        average.mul_(self.config.alpha).addcmul_(grad, grad, value=1 - self.config.alpha)
        self._divided(lr, grad, data, average)

    def _divided(self, lr: float, grad: Tensor, data: Tensor, squares: Tensor) -> None:
        """Step along ``grad``, each number divided by the root of its ``squares``."""
        root = torch.add(squares, TINY).sqrt_()
        data.addcdiv_(grad, root.add_(self.config.eps), value=-lr)

    def _adadelta(
        self, lr: float, grad: Tensor, data: Tensor, squares: Tensor, deltas: Tensor
    ) -> None:
        rho, eps = self.config.rho, self.config.eps
        squares.mul_(rho).addcmul_(grad, grad, value=1 - rho)
        root = torch.add(squares, eps).sqrt_()
        delta = torch.add(deltas, eps).sqrt_().div_(root).mul_(grad)
        deltas.mul_(rho).addcmul_(delta, delta, value=1 - rho)
        data.add_(delta, alpha=-lr)

    def state_tensors(self) -> dict[str, Tensor]:
        """The optimizer's statistics by name."""
        return dict(self.state)

    def load_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Continue from :meth:`state_tensors`."""
        if set(tensors) != set(self.state):
            raise UserError(
                f"the saved optimizer has {sorted(tensors)}, this one {sorted(self.state)}: "
                "keep optimizer.name and optimizer.amsgrad, or start anew with --init-from"
            )
        for name, mine in self.state.items():
            if tensors[name].shape != mine.shape:
                raise UserError(
                    f"optimizer state '{name}' has {tensors[name].numel()} values for "
                    f"{mine.numel()} parameters: it belongs to another network"
                )
            mine.copy_(tensors[name])


def parts_between(
    start: int, stop: int, scales: Sequence[tuple[slice, float]]
) -> Iterator[tuple[slice, float]]:
    """All of ``start`` to ``stop`` in turn, cut where another of ``scales`` begins or ends."""
    at = start
    for part, scale in sorted(scales, key=lambda each: each[0].start):
        first, last = max(part.start, at), min(part.stop, stop)
        if first >= last:
            continue
        if at < first:
            yield slice(at, first), 1.0
        yield slice(first, last), scale
        at = last
    if at < stop:
        yield slice(at, stop), 1.0
