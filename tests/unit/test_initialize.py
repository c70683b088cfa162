"""Initialisers: orthogonal rows, bounds and variances."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from rookery.nets.initialize import Initializer, initialize


def initialized(name: Initializer, gain: float, module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    initialize(module, name, gain)
    for parameter_name, parameter in module.named_parameters():
        if "bias" in parameter_name:
            assert not parameter.any()
    return module


def test_orthogonal_rows_are_orthogonal_and_as_long_as_the_gain() -> None:
    wide = initialized("orthogonal", 1.5, nn.Linear(32, 8))
    weight = cast(Tensor, wide.weight)
    torch.testing.assert_close(weight @ weight.T, 1.5**2 * torch.eye(8), rtol=0, atol=1e-5)
    tall = cast(Tensor, initialized("orthogonal", 0.5, nn.Linear(8, 32)).weight)
    torch.testing.assert_close(tall.T @ tall, 0.5**2 * torch.eye(8), rtol=0, atol=1e-5)
    kernel = cast(Tensor, initialized("orthogonal", 1.0, nn.Conv2d(3, 8, 4)).weight).flatten(1)
    torch.testing.assert_close(kernel @ kernel.T, torch.eye(8), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "bound", "variance"),
    [
        ("uniform", 1.5 / math.sqrt(400), 1.5**2 / (3 * 400)),
        ("normal", math.inf, 1.5**2 / 400),
        ("xavier", 1.5 * math.sqrt(6 / (400 + 300)), 1.5**2 * 2 / (400 + 300)),
    ],
)
def test_bounds_and_variances_of_initialisers(
    name: Initializer, bound: float, variance: float
) -> None:
    weight = cast(Tensor, initialized(name, 1.5, nn.Linear(400, 300)).weight).detach()
    assert float(weight.abs().max()) <= bound
    if math.isfinite(bound):
        assert float(weight.abs().max()) > 0.99 * bound
    assert abs(float(weight.var()) / variance - 1.0) < 0.03
    assert abs(float(weight.mean())) < 4 * math.sqrt(variance / weight.numel())


def test_the_fan_in_of_a_kernel_counts_its_window() -> None:
    kernel = cast(Tensor, initialized("uniform", 1.0, nn.Conv2d(8, 64, 5)).weight)
    assert 0.99 < float(kernel.detach().abs().max()) * math.sqrt(8 * 25) <= 1.0
