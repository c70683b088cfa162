"""Heads: features to a distribution over actions.

Every distribution offers ``sample(rng)``, ``mode()``, ``log_prob(action)`` and ``entropy()``.
Randomness comes from a NumPy generator, so one saved state serves every device. Shapes: ``[..., ]``
any leading axes.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rookery.core.errors import UserError
from rookery.core.spec import LeafSpec
from rookery.nets.initialize import Initializer, initialize

MASKED_LOGIT = -1e9
"""Logit of a forbidden action: finite, so entropies stay numbers."""

LEAST_NOISE = 1e-8
"""Float32 exponential noise is exactly 0 once in some eight million draws. The logarithm of that
would make the choice certain, however unlikely or even forbidden it is."""


class Noise(Protocol):
    """Where randomness comes from: a NumPy generator, or what draws like one."""

    def standard_exponential(self, size: Any, dtype: Any) -> Any:
        """Exponential noise."""
        ...

    def standard_normal(self, size: Any, dtype: Any) -> Any:
        """Normal noise."""
        ...

    def random(self, size: Any, dtype: Any) -> Any:
        """Uniform noise in [0, 1)."""
        ...


class ActionDist(Protocol):
    """A distribution over actions."""

    def sample(self, rng: Noise) -> Tensor:
        """An action drawn with ``rng``."""
        ...

    def mode(self) -> Tensor:
        """The most likely action."""
        ...

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability (density) of ``action``, summed over its elements."""
        ...

    def entropy(self) -> Tensor:
        """Entropy, summed over the action's elements."""
        ...


def _exponential(rng: Noise, like: Tensor) -> Tensor:
    noise = torch.from_numpy(rng.standard_exponential(tuple(like.shape), np.float32))
    return noise.clamp_(min=LEAST_NOISE).to(like.device)


class Categorical:
    """One choice out of n, by logits ``[..., n]``."""

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = functional.log_softmax(logits, -1)

    def sample(self, rng: Noise) -> Tensor:
        """Gumbel-max: the argmax of logits plus Gumbel noise is a sample."""
        return (self.log_probs - _exponential(rng, self.log_probs).log()).argmax(-1)

    def mode(self) -> Tensor:
        """The most likely choice."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-probability of ``action`` ``[...]``."""
        return self.log_probs.gather(-1, action[..., None]).squeeze(-1)

    def entropy(self) -> Tensor:
        """``-sum p log p``."""
        return -(self.log_probs.exp() * self.log_probs).sum(-1)


class MultiCategorical:
    """Several independent choices, by joined logits ``[..., sum(sizes)]``."""

    def __init__(self, logits: Tensor, sizes: tuple[int, ...]) -> None:
        self.parts = [Categorical(part) for part in torch.split(logits, list(sizes), -1)]

    def sample(self, rng: Noise) -> Tensor:
        """``[..., k]`` one choice per element."""
        return torch.stack([part.sample(rng) for part in self.parts], -1)

    def mode(self) -> Tensor:
        """``[..., k]`` the most likely choice of each."""
        return torch.stack([part.mode() for part in self.parts], -1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum over the elements."""
        terms = [part.log_prob(action[..., i]) for i, part in enumerate(self.parts)]
        return torch.stack(terms, -1).sum(-1)

    def entropy(self) -> Tensor:
        """Sum over the elements."""
        return torch.stack([part.entropy() for part in self.parts], -1).sum(-1)


class Bernoulli:
    """Independent yes/no choices, by logits ``[..., n]``."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, rng: Noise) -> Tensor:
        """``[..., n]`` int8 of 0 and 1."""
        uniform = torch.from_numpy(rng.random(tuple(self.logits.shape), np.float32))
        return (uniform.to(self.logits.device) < torch.sigmoid(self.logits)).to(torch.int8)

    def mode(self) -> Tensor:
        """1 where the probability is above one half."""
        return (self.logits > 0).to(torch.int8)

    def log_prob(self, action: Tensor) -> Tensor:
        """Sum over the elements."""
        return -functional.binary_cross_entropy_with_logits(
            self.logits, action.to(self.logits.dtype), reduction="none"
        ).sum(-1)

    def entropy(self) -> Tensor:
        """Sum over the elements."""
        prob = torch.sigmoid(self.logits)
        return functional.binary_cross_entropy_with_logits(self.logits, prob, reduction="none").sum(
            -1
        )


class Gaussian:
    """Independent normal variables, by mean and log standard deviation ``[..., n]``."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std

    def sample(self, rng: Noise) -> Tensor:
        """``mean + std * noise``."""
        noise = torch.from_numpy(rng.standard_normal(tuple(self.mean.shape), np.float32))
        return self.mean + self.log_std.exp() * noise.to(self.mean.device)

    def mode(self) -> Tensor:
        """The mean."""
        return self.mean

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-density, summed over the elements."""
        scaled = (action - self.mean) * torch.exp(-self.log_std)
        return -0.5 * scaled.square().sum(-1) - (self.log_std + 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """``log std + (1 + log 2 pi) / 2``, summed over the elements."""
        each = self.log_std + 0.5 * (1.0 + math.log(2 * math.pi))
        return each.sum(-1).expand(self.mean.shape[:-1])


class ActionHead(nn.Module):
    """A linear layer to the distribution that fits the action space.

    The deviation of a Gaussian is a parameter, or depends on the features (``state_log_std``); a
    floor (``log_std_min``) is approached smoothly, so that it can be left again.
    """

    def __init__(
        self,
        in_features: int,
        action: LeafSpec,
        *,
        init: Initializer,
        log_std_init: float,
        log_std_min: float | None = None,
        state_log_std: bool = False,
        squash_mean: bool = False,
    ) -> None:
        super().__init__()
        self.action = action
        self.least, self.squash = log_std_min, squash_mean
        size = sum(action.sizes) if action.sizes else int(np.prod(action.shape, dtype=int))
        if size == 0:
            raise UserError(f"the action space {action.kind}{list(action.shape)} has no elements")
        by_state = state_log_std and action.kind == "box"
        self.linear = nn.Linear(in_features, 2 * size if by_state else size)
        initialize(self.linear, init, gain=0.01)
        if action.kind == "box":
            start = torch.full((size,), _above(log_std_init, log_std_min))
            if by_state:
                with torch.no_grad():
                    self.linear.bias[size:] += start
            else:
                self.log_std = nn.Parameter(start)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> ActionDist:
        """The distribution for ``features``; ``mask`` is 0 at forbidden choices."""
        out = self.linear(features)
        if mask is not None:
            out = out.masked_fill(mask == 0, MASKED_LOGIT)
        kind = self.action.kind
        if kind == "discrete":
            return Categorical(out)
        if kind == "multi_discrete":
            return MultiCategorical(out, self.action.sizes)
        if kind == "multi_binary":
            return Bernoulli(out)
        return self._gaussian(out)

    def _gaussian(self, out: Tensor) -> Gaussian:
        mean, log_std = (out, self.log_std) if hasattr(self, "log_std") else out.chunk(2, -1)
        if self.least is not None:
            log_std = self.least + functional.softplus(log_std - self.least)
        return Gaussian(torch.tanh(mean) if self.squash else mean, log_std)


def _above(value: float, least: float | None) -> float:
    """What becomes ``value`` once the floor ``least`` is applied."""
    return value if least is None else least + math.log(math.expm1(value - least))
