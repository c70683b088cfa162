"""The encoder: leaves as numbers for a torso, and their running moments."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from rookery.core.spec import ACTION_MASK, Array, LeafSpec
from rookery.nets.encoder import Encoder
from rookery.nets.normalizer import PixelMoments, RunningMoments
from tests.unit.net_inputs import FLOAT, INT, INT8, NAMES, UINT8, generator, randn


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


def test_pixels_are_normalised_by_their_own_moments() -> None:
    """A pixel that varies by its own mean and deviation; one that does not stays near 0."""
    images = torch.randint(0, 256, (4, 8, 2, 40, 36), dtype=torch.uint8, generator=generator())
    images[..., 0, 0] = 7
    encoder = Encoder({"obs": LeafSpec("box", (2, 40, 36), UINT8)}, False, normalize_images=True)
    encoder.update_moments({"obs": images}, torch.ones(4, 8, dtype=torch.bool))
    flat = images.flatten(0, 1)
    out = encoder({"obs": flat})["obs"]
    samples = flat.double()
    std = (samples.var(0, unbiased=False) + PixelMoments.LEAST_STD**2).sqrt()
    expected = ((samples - samples.mean(0)) / std).float()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert not out[..., 0, 0].any()
    flat[:, :, 0, 0] = 255
    assert torch.equal(encoder({"obs": flat})["obs"][..., 0, 0], torch.full((32, 2), 5.0))


def test_a_few_images_of_a_large_batch_are_counted() -> None:
    images = torch.zeros(100, 3, 2, 40, 36, dtype=torch.uint8)
    mask = torch.ones(100, 3, dtype=torch.bool)
    mask[:, 0] = False
    encoder = Encoder({"obs": LeafSpec("box", (2, 40, 36), UINT8)}, False, normalize_images=True)
    encoder.update_moments({"obs": images}, mask)
    encoder.update_moments({"obs": images}, torch.zeros_like(mask))
    (moments,) = encoder.moments.values()
    assert isinstance(moments, PixelMoments)
    assert float(moments.count) == PixelMoments.NUM_IMAGES


def test_the_images_that_are_counted_are_of_all_environments() -> None:
    images = torch.arange(16, dtype=torch.uint8).view(1, 16, 1, 1, 1).expand(64, 16, 2, 40, 36)
    encoder = Encoder({"obs": LeafSpec("box", (2, 40, 36), UINT8)}, False, normalize_images=True)
    encoder.update_moments({"obs": images}, torch.ones(64, 16, dtype=torch.bool))
    (moments,) = encoder.moments.values()
    assert isinstance(moments, PixelMoments)
    assert float(moments.mean[0, 0, 0]) == pytest.approx(7.5, abs=0.5)
    assert float(moments.var[0, 0, 0]) == pytest.approx(21.25, rel=0.1)


def test_pixels_differ_before_anything_is_known_of_them() -> None:
    encoder = Encoder({"obs": LeafSpec("box", (2, 40, 36), UINT8)}, False, normalize_images=True)
    images = torch.tensor([0, 64, 128, 255], dtype=torch.uint8).view(4, 1, 1, 1)
    shades = encoder({"obs": images.expand(4, 2, 40, 36)})["obs"][:, 0, 0, 0]
    assert shades.tolist() == pytest.approx([-1.98, -0.99, 0.0, 1.97], abs=0.01)


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
