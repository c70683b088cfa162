"""Leaves as tensors. Apart from ``spec.py`` so that environment processes never import torch."""

from __future__ import annotations

import torch

Tensors = dict[str, torch.Tensor]
