"""Heads: what their distributions give, masks, and how a new one begins."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, distributions

from rookery.core.errors import UserError
from rookery.core.spec import Array, LeafSpec
from rookery.nets.heads import (
    ActionDist,
    ActionHead,
    Bernoulli,
    Categorical,
    Gaussian,
    MultiCategorical,
    Noise,
)
from tests.unit.net_inputs import ACTIONS, FLOAT, generator, randn

LOGITS = torch.tensor([0.3, -1.2, 2.0, 0.0])


def frequencies(actions: Tensor, num: int) -> Array:
    found: Array = np.bincount(actions.numpy(), minlength=num) / len(actions)
    return found


def tolerance(probs: Array, num: int) -> Array:
    """Four standard deviations of an observed frequency."""
    found: Array = 4.0 * np.sqrt(probs * (1 - probs) / num)
    return found


def test_categorical_samples_follow_their_probabilities() -> None:
    num = 40_000
    sampled = Categorical(LOGITS.expand(num, 4)).sample(np.random.default_rng(0))
    probs = torch.softmax(LOGITS, -1).numpy()
    assert sampled.dtype == torch.int64
    assert (np.abs(frequencies(sampled, 4) - probs) < tolerance(probs, num)).all()


def test_multi_categorical_samples_follow_their_probabilities_independently() -> None:
    num = 40_000
    logits = torch.cat([LOGITS[:2], LOGITS[:3]])
    sampled = MultiCategorical(logits.expand(num, 5), (2, 3)).sample(np.random.default_rng(1))
    assert sampled.shape == (num, 2)
    first, second = torch.softmax(LOGITS[:2], -1), torch.softmax(LOGITS[:3], -1)
    joint = torch.outer(first, second).flatten().numpy()
    found = frequencies(sampled[:, 0] * 3 + sampled[:, 1], 6)
    assert (np.abs(found - joint) < tolerance(joint, num)).all()


def test_bernoulli_samples_follow_their_probabilities_independently() -> None:
    num = 40_000
    sampled = Bernoulli(LOGITS[:2].expand(num, 2)).sample(np.random.default_rng(2))
    assert sampled.dtype == torch.int8
    one, two = torch.sigmoid(LOGITS[:2]).tolist()
    joint = np.array([(1 - one) * (1 - two), (1 - one) * two, one * (1 - two), one * two])
    found = frequencies(sampled[:, 0].long() * 2 + sampled[:, 1], 4)
    assert (np.abs(found - joint) < tolerance(joint, num)).all()


def test_gaussian_samples_follow_their_distribution() -> None:
    num = 40_000
    mean, log_std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, -1.0])
    sampled = Gaussian(mean.expand(num, 2), log_std).sample(np.random.default_rng(3))
    scaled = ((sampled - mean) / log_std.exp()).numpy()
    for bound in (-1.5, -0.5, 0.0, 1.0, 2.0):
        below = np.array([0.5 * (1 + math.erf(bound / math.sqrt(2)))])
        assert (np.abs((scaled < bound).mean(0) - below) < tolerance(below, num)).all()
    assert abs(np.corrcoef(scaled.T)[0, 1]) < 4 / math.sqrt(num)


def reference_dist(kind: str, raw: Tensor) -> tuple[ActionDist, list[distributions.Distribution]]:
    """One of ours, and the independent torch distributions it is made of."""
    make = cast(Any, distributions)
    if kind == "discrete":
        return Categorical(raw), [make.Categorical(logits=raw)]
    if kind == "multi_discrete":
        parts = torch.split(raw, [2, 3, 4], -1)
        return MultiCategorical(raw, (2, 3, 4)), [make.Categorical(logits=p) for p in parts]
    if kind == "multi_binary":
        return Bernoulli(raw), [make.Bernoulli(logits=raw[..., i]) for i in range(raw.shape[-1])]
    log_std = torch.tensor([0.2, -0.7, 0.0])
    scales = log_std.exp()
    return Gaussian(raw, log_std), [
        make.Normal(raw[..., i], scales[i]) for i in range(raw.shape[-1])
    ]


SIZES = {"discrete": 5, "multi_discrete": 9, "multi_binary": 3, "box": 3}


@pytest.mark.parametrize("kind", list(SIZES))
def test_log_prob_and_entropy_and_their_slopes_equal_torch_distributions(kind: str) -> None:
    raw = (2.0 * randn(7, 3, SIZES[kind])).requires_grad_()
    ours, theirs = reference_dist(kind, raw)
    action = ours.sample(np.random.default_rng(0)).detach()
    columns = [action] if kind == "discrete" else list(action.unbind(-1))
    log_prob = torch.stack(
        [
            d.log_prob(a.float() if kind != "box" else a)
            for d, a in zip(theirs, columns, strict=True)
        ]
    ).sum(0)
    entropy = torch.stack([d.entropy() for d in theirs]).sum(0)
    assert ours.log_prob(action).shape == ours.entropy().shape == (7, 3)
    torch.testing.assert_close(ours.log_prob(action), log_prob, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.entropy(), entropy, rtol=1e-5, atol=1e-5)
    weight = randn(7, 3, seed=1)
    slopes = [
        torch.autograd.grad((weight * (lp + 0.3 * h)).sum(), raw, retain_graph=True)[0]
        for lp, h in ((ours.log_prob(action), ours.entropy()), (log_prob, entropy))
    ]
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", list(SIZES))
def test_the_mode_is_the_most_likely_action(kind: str) -> None:
    dist, _ = reference_dist(kind, 2.0 * randn(50, SIZES[kind]))
    best = dist.log_prob(dist.mode())
    for seed in range(20):
        assert (dist.log_prob(dist.sample(np.random.default_rng(seed))) <= best + 1e-6).all()


def masked_head(kind: str, mask: Tensor) -> ActionDist:
    head = ActionHead(6, ACTIONS[kind], init="orthogonal", log_std_init=0.0)
    dist: ActionDist = head(5.0 * randn(len(mask), 6), mask)
    return dist


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_a_masked_choice_is_never_taken(kind: str) -> None:
    sizes = ACTIONS[kind].sizes
    num = 3000
    mask = (torch.rand(num, sum(sizes), generator=generator()) < 0.5).to(torch.int8)
    for start in np.cumsum((0, *sizes[:-1])):
        mask[:, int(start)] |= 1 - mask[:, int(start) : int(start) + 2].amax(1)
    allowed = torch.split(mask, list(sizes), -1)
    assert all(part.any(-1).all() for part in allowed)
    dist = masked_head(kind, mask)
    rng = np.random.default_rng(0)
    for action in (dist.sample(rng), dist.sample(rng), dist.mode()):
        columns = action[:, None] if kind == "discrete" else action
        for part, choice in zip(allowed, columns.unbind(1), strict=True):
            assert part.gather(1, choice[:, None]).all()
        assert torch.isfinite(dist.log_prob(action)).all()
    assert torch.isfinite(dist.entropy()).all()
    only_one = torch.stack([part.sum(-1) == 1 for part in allowed]).all(0)
    assert only_one.any() or kind == "multi_discrete"
    assert (dist.entropy()[only_one].abs() < 1e-5).all()


class NoNoise:
    """Float32 exponential noise is exactly 0 about once in eight million draws."""

    def standard_exponential(self, size: Any, dtype: Any) -> Array:
        noise = np.ones(size, dtype)
        noise[..., 0] = 0.0
        return noise


def test_a_masked_choice_is_not_even_taken_when_its_noise_is_zero() -> None:
    dist = masked_head("discrete", torch.tensor([[0, 1, 1, 0]] * 5))
    assert (dist.sample(cast(Noise, NoNoise())) != 0).all()


def test_noise_of_zero_does_not_make_an_impossible_choice_certain() -> None:
    dist = Categorical(torch.tensor([[-60.0, 0.0]]))
    assert dist.sample(cast(Noise, NoNoise())).tolist() == [1]


def test_the_same_mask_gives_slopes_to_the_allowed_choices_only() -> None:
    raw = randn(1, 4).requires_grad_()
    mask = torch.tensor([[1, 0, 1, 1]])
    Categorical(raw.masked_fill(mask == 0, -1e9)).entropy().sum().backward()  # type: ignore[no-untyped-call]
    assert raw.grad is not None
    assert torch.isfinite(raw.grad).all()
    assert raw.grad[0, 1] == 0


@pytest.mark.parametrize("kind", list(ACTIONS))
def test_a_new_head_is_nearly_uniform(kind: str) -> None:
    """A gain of 0.01: the first actions do not depend on what is seen."""
    head = ActionHead(8, ACTIONS[kind], init="orthogonal", log_std_init=-0.5)
    dist = head(torch.ones(1, 8))
    expected = {
        "discrete": math.log(4),
        "multi_discrete": math.log(2 * 3 * 4),
        "multi_binary": 3 * math.log(2),
        "box": 2 * (-0.5 + 0.5 * (1 + math.log(2 * math.pi))),
    }
    assert abs(float(dist.entropy().detach()) - expected[kind]) < 1e-2


def gaussian(**settings: Any) -> Gaussian:
    torch.manual_seed(1)
    head = ActionHead(8, ACTIONS["box"], init="orthogonal", **{"log_std_init": -0.5} | settings)
    dist = head(torch.from_numpy(np.random.default_rng(0).normal(size=(64, 8))).float() * 100)
    assert isinstance(dist, Gaussian)
    return dist


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("least", [None, -1.0])
def test_deviations_start_where_they_are_told_and_keep_to_their_floor(
    state: bool, least: Any
) -> None:
    torch.manual_seed(0)
    floor = {"log_std_min": least, "state_log_std": state}
    head: Any = ActionHead(8, ACTIONS["box"], init="orthogonal", log_std_init=-0.5, **floor)
    start = head(torch.zeros(1, 8))
    torch.testing.assert_close(start.log_std.flatten(), torch.full((2,), -0.5))
    target = head.linear.bias[2:] if state else head.log_std
    with torch.no_grad():
        target.sub_(50.0)
    low = head(torch.zeros(1, 8)).log_std.flatten()
    torch.testing.assert_close(low, torch.full((2,), -50.5 if least is None else least))


def test_a_floor_can_be_left_again() -> None:
    floor = {"log_std_init": -0.5, "log_std_min": -1.0}
    head: Any = ActionHead(8, ACTIONS["box"], init="orthogonal", **floor)
    with torch.no_grad():
        head.log_std.sub_(3.0)
    head(torch.zeros(1, 8)).entropy().sum().backward()
    assert (head.log_std.grad > 1e-3).all()


def test_a_deviation_that_depends_on_the_state_differs_from_row_to_row() -> None:
    assert gaussian(state_log_std=True).log_std.std(0).min() > 0.1
    assert gaussian().log_std.shape == (2,)


def test_a_squashed_mean_stays_within_the_bounds() -> None:
    free, squashed = gaussian(), gaussian(squash_mean=True)
    assert free.mode().abs().max() > 1
    torch.testing.assert_close(squashed.mode(), torch.tanh(free.mode()))


def test_an_empty_action_space_is_refused() -> None:
    with pytest.raises(UserError, match="has no elements"):
        ActionHead(4, LeafSpec("box", (0,), FLOAT), init="normal", log_std_init=0.0)
