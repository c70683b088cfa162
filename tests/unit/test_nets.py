"""Networks: heads, cores, encoder, torsos, initialisers, and the policy they make.

Shapes: T steps, B environments, N samples.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn

from rookery.core.errors import UserError
from rookery.core.signature import Signature
from rookery.core.spec import ACTION_MASK, Array, LeafSpec
from rookery.core.tensors import Tensors
from rookery.nets.actor_critic import ActorCritic
from rookery.nets.cores import Core, CoreName
from rookery.nets.encoder import Encoder
from rookery.nets.heads import (
    ActionDist,
    ActionHead,
    Bernoulli,
    Categorical,
    Gaussian,
    MultiCategorical,
    Noise,
)
from rookery.nets.images import IMAGE_LAYERS
from rookery.nets.initialize import Initializer, initialize
from rookery.nets.normalizer import RunningMoments
from rookery.nets.policy import PolicyConfig
from rookery.nets.torsos import ConvTorso, MLPTorso, Shapes, build_torso

FLOAT = np.dtype(np.float32)
INT = np.dtype(np.int64)
INT8 = np.dtype(np.int8)
UINT8 = np.dtype(np.uint8)

ACTIONS = {
    "discrete": LeafSpec("discrete", (), INT, (4,)),
    "multi_discrete": LeafSpec("multi_discrete", (3,), INT, (2, 3, 4)),
    "multi_binary": LeafSpec("multi_binary", (3,), INT8),
    "box": LeafSpec("box", (2,), FLOAT),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed))


# --- heads -----------------------------------------------------------------------------------

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


# --- cores -----------------------------------------------------------------------------------

T, B, F, H = 9, 4, 5, 6


def random_resets() -> Tensor:
    """Starts of episodes: at the beginning, at the end, two in a row, everywhere at once, never."""
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[0, 0] = reset[3, 0] = reset[4, 0] = True
    reset[T - 1, 1] = True
    reset[6, :3] = True
    return reset


def random_state(core: Core, num: int) -> Tensors:
    return {
        name: randn(num, *spec.shape, seed=seed)
        for seed, (name, spec) in enumerate(core.state_spec.items(), 5)
    }


@pytest.fixture(params=["gru", "lstm"])
def core(request: pytest.FixtureRequest) -> Core:
    torch.manual_seed(0)
    return Core(request.param, F, H)


def test_an_unroll_equals_stepping_with_the_state_zeroed_at_resets(core: Core) -> None:
    features, reset, state = randn(T, B, F), random_resets(), random_state(core, B)
    outputs, after = core(features, state, reset)
    assert outputs.shape == (T, B, H)
    for t in range(T):
        state = {n: torch.where(reset[t][:, None], 0.0, leaf) for n, leaf in state.items()}
        output, state = core(features[t : t + 1], state, torch.zeros(1, B, dtype=torch.bool))
        torch.testing.assert_close(output[0], outputs[t], rtol=1e-5, atol=1e-6)
    for name in core.state_spec:
        torch.testing.assert_close(state[name], after[name], rtol=1e-5, atol=1e-6)


def test_an_unroll_equals_each_episode_by_itself(core: Core) -> None:
    features, reset, state = randn(T, B, F), random_resets(), random_state(core, B)
    outputs, _ = core(features, state, reset)
    for b in range(B):
        starts = torch.nonzero(reset[:, b]).flatten().tolist()
        cuts = sorted({0, *starts, T})
        for start, stop in pairwise(cuts):
            first = None
            if start not in starts:
                leaves = [leaf[b][None, None] for leaf in state.values()]
                first = leaves[0] if core.name == "gru" else tuple(leaves)
            alone, _ = core.rnn(features[start:stop, b : b + 1], first)
            torch.testing.assert_close(outputs[start:stop, b], alone[:, 0], rtol=1e-5, atol=1e-6)


def test_gradients_do_not_cross_a_reset(core: Core) -> None:
    features = randn(T, B, F).requires_grad_()
    reset = random_resets()
    outputs, _ = core(features, random_state(core, B), reset)
    outputs[5, 0].sum().backward()
    assert features.grad is not None
    reached = features.grad[:, 0].abs().sum(-1) > 0
    assert reached.tolist() == [False] * 4 + [True] * 2 + [False] * 3
    assert not features.grad[:, 1:].any()


def test_a_core_must_be_one() -> None:
    with pytest.raises(ValueError, match="gru or an lstm"):
        Core("none", F, H)


# --- encoder ---------------------------------------------------------------------------------


def encode(leaf: LeafSpec, values: Array, name: str = "obs") -> Tensor:
    """One leaf encoded; what comes out must have the shape that was promised."""
    encoder = Encoder({name: leaf}, normalize=False)
    out = encoder({name: torch.from_numpy(values)})[name]
    assert out.dtype == torch.float32
    assert tuple(out.shape) == (len(values), *encoder.shapes[name])
    return cast(Tensor, out)


def test_discrete_leaves_become_one_hot() -> None:
    out = encode(LeafSpec("discrete", (), INT, (4,)), np.array([2, 0, 3]))
    assert out.tolist() == [[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]]
    pairs = encode(LeafSpec("multi_discrete", (2,), INT, (2, 3)), np.array([[1, 0], [0, 2]]))
    assert pairs.tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_binary_float_and_integer_leaves_stay_as_they_are() -> None:
    lamps = np.array([[0, 1, 1]], np.int8)
    assert encode(LeafSpec("multi_binary", (3,), INT8), lamps).tolist() == [[0, 1, 1]]
    speeds = np.array([[0.5, -3.0]], np.float32)
    assert encode(LeafSpec("box", (2,), FLOAT), speeds).tolist() == [[0.5, -3.0]]
    counts = np.array([[7, -3]], np.int32)
    assert encode(LeafSpec("box", (2,), np.dtype(np.int32)), counts).tolist() == [[7, -3]]


def test_a_leaf_of_one_number_becomes_one_feature() -> None:
    out = encode(LeafSpec("box", (), FLOAT), np.array([0.5, 1.5], np.float32))
    assert out.tolist() == [[0.5], [1.5]]


def test_uint8_becomes_zero_to_one_and_the_stored_frames_stay() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 5, 7), np.uint8)
    kept = frames.copy()
    out = encode(LeafSpec("box", (5, 7), UINT8), frames)
    np.testing.assert_allclose(out.numpy(), kept / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(frames, kept)


def test_float_observations_are_not_changed_in_place() -> None:
    frames = np.full((2, 40, 40, 3), 0.5, np.float32)
    encode(LeafSpec("box", (40, 40, 3), FLOAT), frames)
    assert (frames == 0.5).all()


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((40, 41, 3), (0, 3, 1, 2)),
        ((3, 40, 41), (0, 1, 2, 3)),
        ((4, 40, 41), (0, 1, 2, 3)),
        ((10, 11, 4), (0, 3, 1, 2)),
        ((4, 10, 11), (0, 1, 2, 3)),
    ],
)
def test_images_come_out_with_channels_first(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    out = encode(LeafSpec("box", shape, FLOAT), images)
    np.testing.assert_array_equal(out.numpy(), images.transpose(axes))


@pytest.mark.parametrize("channels_last", [True, False])
def test_stacked_images_join_their_channels(channels_last: bool) -> None:
    """Frame by frame: the channels of the first frame, then those of the next."""
    images = np.random.default_rng(0).normal(size=(2, 4, 3, 40, 41)).astype(np.float32)
    stored = images.transpose(0, 1, 3, 4, 2) if channels_last else images
    leaf = LeafSpec("box", stored.shape[1:], FLOAT)
    out = encode(leaf, np.ascontiguousarray(stored))
    np.testing.assert_array_equal(out.numpy(), images.reshape(2, 12, 40, 41))


def test_more_axes_than_an_image_has_are_left_to_the_torso() -> None:
    values = np.random.default_rng(0).normal(size=(3, 2, 2, 2, 2, 2)).astype(np.float32)
    out = encode(LeafSpec("box", (2, 2, 2, 2, 2), FLOAT), values)
    np.testing.assert_array_equal(out.numpy(), values)


def test_an_action_mask_is_not_an_observation() -> None:
    encoder = Encoder(
        {"obs": LeafSpec("box", (2,), FLOAT), ACTION_MASK: LeafSpec("multi_binary", (4,), INT8)},
        normalize=False,
    )
    out = encoder({"obs": torch.zeros(1, 2), ACTION_MASK: torch.ones(1, 4)})
    assert set(out) == set(encoder.shapes) == {"obs"}


NAMES = ["obs", "inner.speed", "a.b.c", "type", "values", "pop", "0.1"]
"""Leaf names of nested spaces, some of which modules use themselves."""


def test_leaves_may_have_any_name_when_normalised() -> None:
    leaves = {name: LeafSpec("box", (2,), FLOAT) for name in NAMES}
    encoder = Encoder(leaves, normalize=True)
    obs = {name: randn(3, 5, 2, seed=seed) for seed, name in enumerate(NAMES)}
    encoder.update_moments(obs, torch.ones(3, 5, dtype=torch.bool))
    out = encoder({name: leaf.flatten(0, 1) for name, leaf in obs.items()})
    for name in NAMES:
        flat = obs[name].flatten(0, 1)
        expected = (flat - flat.mean(0)) / flat.std(0, unbiased=False)
        torch.testing.assert_close(out[name], expected, rtol=1e-4, atol=1e-5)


def test_leaves_may_have_any_name_when_convolved() -> None:
    shapes: Shapes = dict.fromkeys(NAMES, (1, 36, 36))
    torso = ConvTorso(shapes, kind="conv2d", hidden=(8,), activation="relu", init="orthogonal")
    features = torso({name: torch.zeros(2, 1, 36, 36) for name in NAMES})
    assert features.shape == (2, 8)


@pytest.mark.parametrize("shape", [(4, 40, 36), (40, 36, 3)])
def test_byte_images_are_scaled_and_laid_out_by_pixels(shape: tuple[int, ...]) -> None:
    """The layout is for speed only: the numbers are those of the plain one."""
    encoder = Encoder({"obs": LeafSpec("box", shape, UINT8)}, normalize=False)
    images = torch.randint(0, 256, (5, *shape), dtype=torch.uint8, generator=generator())
    before = images.clone()
    out = encoder({"obs": images})["obs"]
    plain = images.float() / 255.0
    plain = plain if shape[-1] > 16 else plain.movedim(-1, 1)
    torch.testing.assert_close(out, plain, rtol=1e-6, atol=1e-7)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)


@pytest.mark.parametrize("torso", list(IMAGE_LAYERS))
def test_image_torsos_give_the_same_features_in_either_layout(torso: str) -> None:
    layers = build_torso(
        torso, {"obs": (4, 84, 84)}, hidden=(16,), activation="relu", init="orthogonal", kwargs={}
    )
    images = torch.rand(3, 4, 84, 84, generator=generator())
    by_pixel = images.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(
        layers({"obs": images}), layers({"obs": by_pixel}), rtol=1e-3, atol=1e-4
    )


def test_the_image_networks_have_the_sizes_of_their_papers() -> None:
    """Nature DQN with 512 units: 1,684,128 to its last hidden layer; IMPALA's about 1 M."""

    def count(torso: str, hidden: tuple[int, ...]) -> int:
        layers = build_torso(
            torso, {"obs": (4, 84, 84)}, hidden=hidden, activation="relu", init="normal", kwargs={}
        )
        return sum(parameter.numel() for parameter in cast(nn.Module, layers).parameters())

    nature = (4 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 64 + (3136 + 1) * 512
    assert count("conv2d", (512,)) == nature == 1_684_128
    sections = ((4, 16), (16, 32), (32, 32))
    convs = sum((9 * a + 1) * b + 4 * (9 * b + 1) * b for a, b in sections)
    assert count("resnet", (256,)) == convs + (32 * 11 * 11 + 1) * 256
    ba3c = (4 * 25 + 1) * 32 + (32 * 25 + 1) * 32 + (32 * 25 + 1) * 64 + (64 * 9 + 1) * 64
    assert count("ba3c", (128,)) == ba3c + (64 * 10 * 10 + 1) * 128


def test_bf16_computes_torsos_coarsely_and_keeps_weights_and_outputs_float32() -> None:
    signature = Signature(
        obs={"obs": LeafSpec("box", (4, 36, 36), UINT8)}, action=ACTIONS["discrete"]
    )
    exact, coarse = (
        _seeded_policy(PolicyConfig(precision=precision), signature)
        for precision in ("fp32", "bf16")
    )
    images = torch.randint(0, 256, (6, 4, 36, 36), dtype=torch.uint8, generator=generator())
    (_, value), (_, rounded) = (
        policy.unroll({"obs": images}, {}, torch.zeros(6)) for policy in (exact, coarse)
    )
    assert rounded.dtype == torch.float32
    assert not torch.equal(value, rounded)
    torch.testing.assert_close(value, rounded, rtol=0.1, atol=0.05)
    rounded.sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in coarse.parameters())


def _seeded_policy(config: PolicyConfig, signature: Signature) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(config, signature)


def test_running_moments_equal_those_of_all_samples_at_once() -> None:
    """Over batches of any size, including what a mask leaves of them and none at all."""
    rng = np.random.default_rng(0)
    leaf = LeafSpec("box", (3,), FLOAT)
    encoder = Encoder({"obs": leaf, "frame": LeafSpec("box", (3,), UINT8)}, normalize=True)
    kept: list[Array] = []
    for num_steps, rate in ((5, 1.0), (1, 1.0), (8, 0.5), (4, 0.0), (9, 0.3)):
        values = rng.normal(4.0, 3.0, (num_steps, 4, 3)).astype(np.float32)
        mask = rng.random((num_steps, 4)) < rate
        obs = {"obs": torch.from_numpy(values), "frame": torch.zeros(num_steps, 4, 3)}
        encoder.update_moments(obs, torch.from_numpy(mask))
        kept.append(values[mask])
    samples = np.concatenate(kept).astype(np.float64)
    (moments,) = encoder.moments.values()
    assert isinstance(moments, RunningMoments)
    assert float(moments.count) == len(samples)
    np.testing.assert_allclose(moments.mean.numpy(), samples.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.var.numpy(), samples.var(0), rtol=1e-12)


def test_normalising_uses_the_moments_and_clips() -> None:
    moments = RunningMoments((2,))
    values = randn(6, 2) * torch.tensor([2.0, 0.1]) + 3.0
    torch.testing.assert_close(moments.normalize(values), values, rtol=1e-6, atol=1e-6)
    moments.update(values)
    scaled = moments.normalize(values)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(2), rtol=0, atol=1e-5)
    torch.testing.assert_close(scaled.std(0, unbiased=False), torch.ones(2), rtol=1e-4, atol=0)
    assert moments.normalize(torch.full((1, 2), 1e6)).tolist() == [[10.0, 10.0]]
    assert moments.normalize(torch.full((1, 2), -1e6), clip=3.0).tolist() == [[-3.0, -3.0]]


def test_a_feature_that_never_changes_normalises_to_zero_whatever_its_size() -> None:
    moments = RunningMoments((2,))
    values = torch.tensor([[1234.567, 1e-6]]).expand(10, 2)
    moments.update(values)
    assert moments.normalize(values).abs().max() < 1e-6


def test_moments_written_from_outside_count_after_refreshing() -> None:
    policy = build(PolicyConfig(normalize_obs=True))
    state = policy.initial_state(1)
    obs, reset = {"obs": torch.ones(1, 3)}, torch.zeros(1, dtype=torch.bool)
    before = policy.value(obs, state, reset)
    moved = build(PolicyConfig(normalize_obs=True))
    moved.update_moments({"obs": randn(9, 2, 3) + 5.0}, torch.ones(9, 2, dtype=torch.bool))
    policy.load_state_dict(moved.state_dict())
    policy.refreshed()
    after = policy.value(obs, state, reset)
    torch.testing.assert_close(after, moved.value(obs, state, reset))
    assert not torch.allclose(before, after)


# --- torsos ----------------------------------------------------------------------------------


class OwnTorso(nn.Module):
    """A torso as a user writes one."""

    def __init__(self, shapes: Shapes, *, width: int) -> None:
        super().__init__()
        self.out_features = width
        self.linear = nn.Linear(shapes["obs"][0], width)

    def forward(self, obs: Tensors) -> Tensor:
        return cast(Tensor, self.linear(obs["obs"]))


class ShapelessTorso(nn.Module):
    """A torso whose author forgot out_features."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()


def torso(name: str, shapes: Shapes, **kwargs: Any) -> Any:
    return build_torso(
        name, shapes, hidden=(8, 6), activation="relu", init="orthogonal", kwargs=kwargs
    )


def features_of(torso: Any, shapes: Shapes) -> Tensor:
    obs = {name: randn(5, *shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    features = torso(obs)
    assert features.shape == (5, torso.out_features)
    return cast(Tensor, features)


@pytest.mark.parametrize(
    ("name", "shapes", "kind"),
    [
        ("mlp", {"obs": (3,)}, MLPTorso),
        ("mlp", {"obs": (2, 36, 36), "speed": (3,)}, MLPTorso),
        ("auto", {"obs": (3,), "grid": (4, 8)}, MLPTorso),
        ("auto", {"obs": (2, 36, 40), "speed": (3,)}, ConvTorso),
        ("conv2d", {"in.left": (1, 36, 36), "in.right": (3, 84, 84), "speed": (3,)}, ConvTorso),
        ("resnet", {"obs": (4, 84, 84), "speed": (3,)}, ConvTorso),
        ("ba3c", {"obs": (4, 84, 84)}, ConvTorso),
        ("conv2d_small", {"obs": (4, 20, 84)}, ConvTorso),
        ("conv1d", {"obs": (4, 7)}, ConvTorso),
        ("conv1d", {"obs": (4, 12), "image": (1, 5, 5), "speed": (3,)}, ConvTorso),
    ],
)
def test_torsos_by_name(name: str, shapes: Shapes, kind: type[nn.Module]) -> None:
    built = torso(name, shapes)
    assert type(built) is kind
    assert built.out_features == 6
    features_of(built, shapes)


@pytest.mark.parametrize("name", ["mlp", "conv2d"])
def test_every_leaf_reaches_the_features(name: str) -> None:
    shapes: Shapes = {"image": (1, 36, 36), "speed": (3,), "room": (4,)}
    built = torso(name, shapes)
    obs = {leaf: randn(1, *shape).requires_grad_() for leaf, shape in shapes.items()}
    built(obs).square().sum().backward()
    for leaf, values in obs.items():
        assert values.grad is not None, leaf
        assert values.grad.any(), leaf


def test_a_torso_without_hidden_layers_passes_everything_on() -> None:
    built = build_torso(
        "mlp", {"a": (3,), "b": (2,)}, hidden=(), activation="tanh", init="xavier", kwargs={}
    )
    out = built({"a": torch.ones(1, 3), "b": torch.zeros(1, 2)})
    assert out.tolist() == [[1, 1, 1, 0, 0]]


def test_a_torso_of_your_own() -> None:
    built = torso("tests.unit.test_nets:OwnTorso", {"obs": (3,)}, width=11)
    assert features_of(built, {"obs": (3,)}).shape == (5, 11)


@pytest.mark.parametrize(
    ("name", "shapes", "kwargs", "said"),
    [
        ("conv3d", {"obs": (3,)}, {}, "unknown 'conv3d'; did you mean"),
        ("resnat", {"obs": (3,)}, {}, "did you mean 'resnet'"),
        (
            "vit",
            {"obs": (3,)},
            {},
            "conv2d, conv2d_small, resnet, ba3c, grid, or package.module:Class",
        ),
        ("resnet", {"obs": (3,)}, {}, "needs an observation that is an image"),
        ("ba3c", {"obs": (1, 7, 84)}, {}, "at least 8x8, got 7x84; use torso: mlp"),
        ("conv2d", {"obs": (3,)}, {}, "needs an observation that is an image"),
        ("conv1d", {"obs": (3,)}, {}, "env.frame_stack"),
        ("conv2d", {"obs": (1, 35, 84)}, {}, "at least 36x36, got 35x84; use torso: mlp"),
        ("conv1d", {"obs": (4, 6)}, {}, "at least 7 features per frame, got 6"),
        ("mlp", {"obs": (3,)}, {"width": 3}, "only a torso of your own"),
        ("no_such_module:Torso", {"obs": (3,)}, {}, "no module named 'no_such_module'"),
        ("tests.unit.test_nets:OwnTorsi", {"obs": (3,)}, {}, "did you mean 'OwnTorso'"),
        ("tests.unit.test_nets:ShapelessTorso", {"obs": (3,)}, {}, "must set the attribute out_"),
    ],
)
def test_torsos_that_cannot_be_are_refused(
    name: str, shapes: Shapes, kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        torso(name, shapes, **kwargs)
    assert str(caught.value).startswith("policy.torso")
    assert said in str(caught.value)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(UserError, match="unknown 'relo'; did you mean 'relu'"):
        build_torso("mlp", {"obs": (3,)}, hidden=(4,), activation="relo", init="normal", kwargs={})


# --- initialisers ----------------------------------------------------------------------------


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


# --- the policy ------------------------------------------------------------------------------


def build(
    config: PolicyConfig | None = None,
    action: LeafSpec = ACTIONS["discrete"],
    obs: dict[str, LeafSpec] | None = None,
) -> ActorCritic:
    torch.manual_seed(0)
    obs = obs or {"obs": LeafSpec("box", (3,), FLOAT)}
    policy = ActorCritic(config or PolicyConfig(), Signature(obs=obs, action=action))
    # Heads begin almost silent; here they must say something.
    nn.init.normal_(policy.action_head.linear.weight)
    return policy


OBS = {
    "camera": LeafSpec("box", (4, 5), UINT8),
    "inner.speed": LeafSpec("box", (2,), FLOAT),
    "room": LeafSpec("discrete", (), INT, (3,)),
}


def random_obs(num_steps: int, num_envs: int) -> Tensors:
    rng = np.random.default_rng(0)
    shape = (num_steps, num_envs)
    return {
        "camera": torch.from_numpy(rng.integers(0, 256, (*shape, 4, 5), np.uint8)),
        "inner.speed": torch.from_numpy(rng.normal(3, 2, (*shape, 2)).astype(np.float32)),
        "room": torch.from_numpy(rng.integers(0, 3, shape)),
    }


@pytest.mark.parametrize("core_name", ["none", "gru", "lstm"])
@pytest.mark.parametrize("kind", list(ACTIONS))
def test_acting_and_learning_agree(kind: str, core_name: CoreName) -> None:
    """Log-probability and value when acting are those of the unroll, so PPO's ratio starts at 1."""
    leaf = ACTIONS[kind]
    masked = bool(leaf.sizes)
    leaves = dict(OBS)
    obs, reset = random_obs(T, B), random_resets()
    if masked:
        leaves[ACTION_MASK] = LeafSpec("multi_binary", (sum(leaf.sizes),), INT8)
        mask = torch.ones(T, B, sum(leaf.sizes), dtype=torch.int8)
        mask[::2, :, 0] = 0
        obs[ACTION_MASK] = mask
    config = PolicyConfig(core=core_name, core_size=7, normalize_obs=True, hidden=(16,))
    policy = build(config, leaf, leaves)
    policy.update_moments(obs, torch.ones(T, B, dtype=torch.bool))
    start = {name: randn(*leaf.shape) for name, leaf in policy.initial_state(B).items()}
    state, rng = start, np.random.default_rng(0)
    acted = []
    with torch.inference_mode():
        for t in range(T):
            now = {name: values[t] for name, values in obs.items()}
            value = policy.value(now, state, reset[t])
            out, state = policy.step(now, state, reset[t], rng)
            torch.testing.assert_close(value, out.value)
            acted.append(out)
    actions = torch.stack([out.action for out in acted]).clone()
    if core_name == "none":
        dist, value = policy.unroll({n: v.flatten(0, 1) for n, v in obs.items()}, {}, reset)
        actions = actions.flatten(0, 1)
    else:
        dist, value = policy.unroll(obs, start, reset)
    log_prob = torch.stack([out.log_prob for out in acted])
    values = torch.stack([out.value for out in acted])
    found = dist.log_prob(actions).detach().view(T, B)
    torch.testing.assert_close(found, log_prob, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value.detach().view(T, B), values, rtol=1e-5, atol=1e-5)
    assert float(log_prob.std()) > 0.05


def test_without_noise_the_most_likely_action_is_taken() -> None:
    policy = build()
    obs, reset = {"obs": randn(6, 3)}, torch.zeros(6, dtype=torch.bool)
    out, _ = policy.step(obs, {}, reset, None)
    dist, _ = policy.unroll(obs, {}, reset)
    assert torch.equal(out.action, dist.mode())


def test_the_initial_state_is_zero_and_has_the_declared_leaves() -> None:
    assert build().initial_state(3) == {}
    assert not build().recurrent
    policy = build(PolicyConfig(core="lstm", core_size=5))
    assert policy.recurrent
    state = policy.initial_state(3)
    assert {name: tuple(leaf.shape) for name, leaf in state.items()} == {"h": (3, 5), "c": (3, 5)}
    assert not any(leaf.any() for leaf in state.values())


def slopes(policy: ActorCritic, of: str) -> set[str]:
    """Parts of the policy that the action (or the value) depends on."""
    policy.zero_grad()
    shapes = {name: leaf.shape for name, leaf in policy.signature.obs.items()}
    obs = {name: torch.rand(2, *shape, generator=generator()) for name, shape in shapes.items()}
    dist, value = policy.unroll(obs, {}, torch.zeros(2, dtype=torch.bool))
    output = value if of == "value" else dist.log_prob(torch.tensor([0, 1]))
    output.sum().backward()  # type: ignore[no-untyped-call]
    return {
        name.partition(".")[0]
        for name, parameter in policy.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    }


@pytest.mark.parametrize("image", [False, True])
def test_torsos_are_shared_for_images_and_separate_otherwise(image: bool) -> None:
    obs = {"obs": LeafSpec("box", (36, 36, 1) if image else (3,), FLOAT)}
    policy = build(obs=obs)
    own = {"torso"} if image else {"value_torso"}
    assert slopes(policy, "action") == {"torso", "action_head"}
    assert slopes(policy, "value") == own | {"value_head"}


def test_torsos_are_shared_or_separate_when_asked() -> None:
    shared = build(PolicyConfig(shared_torso=True))
    assert shared.value_torso is None
    assert slopes(shared, "value") == {"torso", "value_head"}
    image = {"obs": LeafSpec("box", (36, 36, 1), FLOAT)}
    separate = build(PolicyConfig(shared_torso=False), obs=image)
    assert slopes(separate, "value") == {"value_torso", "value_head"}
    assert build(PolicyConfig(core="gru")).value_torso is None


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"hidden": (64, 0)}, "policy.hidden: sizes must be positive, got [64, 0]"),
        ({"core_size": 0}, "policy.core_size"),
        ({"core": "gru", "shared_torso": False}, "set it to true or core to none"),
    ],
)
def test_policies_that_cannot_be_are_refused(bad: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        PolicyConfig(**bad)
    assert said in str(caught.value)


@pytest.mark.parametrize("obs_leaf", [*OBS.values(), LeafSpec("box", (), FLOAT)])
@pytest.mark.parametrize("core_name", ["none", "gru"])
def test_a_policy_takes_any_leaf_alone(obs_leaf: LeafSpec, core_name: CoreName) -> None:
    policy = build(PolicyConfig(core=core_name, normalize_obs=True), obs={"obs": obs_leaf})
    obs = {"obs": torch.zeros((2, *obs_leaf.shape), dtype=_torch_dtype(obs_leaf))}
    out, _ = policy.step(
        obs, policy.initial_state(2), torch.ones(2, dtype=torch.bool), np.random.default_rng(0)
    )
    assert out.action.shape == out.value.shape == (2,)


def _torch_dtype(leaf: LeafSpec) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, leaf.dtype)).dtype
