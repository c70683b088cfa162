"""All parameters of a module as one vector, and all gradients as another.

One vector means one optimizer kernel, one norm, and one copy to publish, whatever the number of
layers; the module's parameters are views into it, so nothing else changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rookery.core.group import Group


class FlatParams:
    """The parameters and buffers of ``module``, parameters joined in one float32 vector.

    The module must not be moved or cast afterwards. ``data`` and ``grad`` are the vectors' memory,
    if it is somebody else's.
    """

    def __init__(
        self, module: nn.Module, data: Tensor | None = None, grad: Tensor | None = None
    ) -> None:
        self.module = module
        parameters = list(module.parameters())
        device = parameters[0].device
        sizes = [parameter.numel() for parameter in parameters]
        self.data = torch.empty(sum(sizes), device=device) if data is None else data
        # One more than there are parameters: what a gradient weighs travels with it.
        self.grad_and_weight = torch.zeros(sum(sizes) + 1 if grad is None else 0, device=device)
        self.grad = self.grad_and_weight[:-1] if grad is None else grad
        offset = 0
        for parameter, size in zip(parameters, sizes, strict=True):
            view = self.data[offset : offset + size].view(parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.grad[offset : offset + size].view(parameter.shape)
            offset += size
        self.buffers = dict(module.named_buffers())

    def part(self, module: nn.Module) -> slice:
        """Where the parameters of ``module``, a part of this one, lie in the vector."""
        places = [(view.storage_offset(), view.numel()) for view in module.parameters()]
        return slice(min(places)[0], sum(max(places)))

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """``vector``, another one like ``data``, by the names of the parameters."""
        return {
            name: vector.as_strided(view.shape, view.stride(), view.storage_offset())
            for name, view in self.module.named_parameters(remove_duplicate=False)
        }

    def zero_grad(self) -> None:
        """Clear all gradients in place (the views must stay attached)."""
        self.grad.zero_()

    def average_grad(self, weight: Tensor, group: Group) -> None:
        """Replace the gradient by its mean over ``group``, each weighed by ``weight``."""
        if group.size == 1:
            return
        self.grad.mul_(weight)
        self.grad_and_weight[-1] = weight
        group.sum_(self.grad_and_weight)
        self.grad.div_(self.grad_and_weight[-1].clamp(min=1.0))

    def clip_grad_norm(self, max_norm: float) -> Tensor:
        """Scale the gradient to at most ``max_norm``; returns the norm before."""
        norm: Tensor = torch.linalg.vector_norm(self.grad)
        self.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """What has to be copied for another process to hold the same module."""
        return {"params": self.data} | {f"buffer.{name}": b for name, b in self.buffers.items()}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Copy from the :meth:`tensors` of an identical module."""
        for name, mine in self.tensors().items():
            mine.copy_(tensors[name])
