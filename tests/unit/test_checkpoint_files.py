"""One checkpoint on disk: what is written, that it comes back, and that damage is found."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from rookery.core.errors import UserError
from rookery.core.seeding import generator_state, restore_generator, stream
from rookery.runs import checkpoint_files
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import State
from rookery.runs.tensorfile import DamagedError
from tests.unit.checkpoint_parts import flip_bit, names, parts


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run" / "checkpoints", durable=False)


def test_layout_of_a_checkpoint(store: CheckpointStore) -> None:
    path = store.save(1000, parts())
    assert path == store.directory / "000000001000"
    assert sorted(file.name for file in path.iterdir()) == [
        "counters.json",
        "manifest.json",
        "replay.json",
        "replay.safetensors",
        "weights.safetensors",
    ]
    assert os.readlink(store.directory / "latest") == "000000001000"
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["version"] == 1
    assert manifest["steps"] == 1000
    listed = manifest["parts"]["weights"]["files"]["weights.safetensors"]
    assert listed["bytes"] == (path / "weights.safetensors").stat().st_size
    assert len(listed["sha256"]) == 64


def test_arrays_come_back_as_they_went_in(store: CheckpointStore) -> None:
    dtypes = ["bool", "uint8", "int8", "uint16", "int16", "float16", "uint32", "int32", "float32"]
    dtypes += ["uint64", "int64", "float64", "complex64"]
    arrays: dict[str, Any] = {f"numpy_{d}": np.arange(6).reshape(2, 3).astype(d) for d in dtypes}
    arrays |= {f"torch_{d}": torch.arange(4).to(getattr(torch, d)) for d in ["bfloat16", "int64"]}
    arrays["scalar"] = np.array(2.5)
    arrays["empty"] = np.zeros((0, 4), np.float32)
    arrays["transposed"] = np.arange(6.0).reshape(2, 3).T
    arrays["read_only"] = np.broadcast_to(np.float32(7), (3,))
    arrays["big_endian"] = np.arange(3, dtype=">i4")
    arrays["parameter"] = torch.nn.Parameter(torch.ones(2))
    arrays["view"] = torch.arange(10.0)[2:8:2]
    arrays["name/with é and spaces"] = torch.ones(1)
    store.save(1, {"all": State(arrays=arrays)})
    loaded = store.load().parts["all"].arrays
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        back = loaded[name]
        assert isinstance(back, torch.Tensor) == isinstance(array, torch.Tensor), name
        assert back.shape == array.shape, name
        if isinstance(back, torch.Tensor):
            assert back.dtype == array.dtype
            assert torch.equal(back, array)
        else:
            assert back.dtype == array.dtype.newbyteorder("=")
            np.testing.assert_array_equal(back, array)


def test_loaded_arrays_are_ours_to_change(store: CheckpointStore) -> None:
    store.save(1, parts())
    first = store.load()
    first.parts["weights"].arrays["a"] += 5
    first.parts["replay"].arrays["obs"][:] = 9
    again = store.load().parts
    assert torch.equal(again["weights"].arrays["a"], torch.ones(2, 2))
    np.testing.assert_array_equal(again["replay"].arrays["obs"], np.arange(6))


def test_tied_weights_are_saved_under_both_names(store: CheckpointStore) -> None:
    shared = torch.randn(3)
    store.save(1, {"weights": State(arrays={"in": shared, "out": shared})})
    loaded = store.load().parts["weights"].arrays
    assert torch.equal(loaded["in"], shared)
    assert torch.equal(loaded["out"], shared)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.dictionaries(st.text(), json_values, max_size=4))
def test_data_comes_back_equal(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    store = CheckpointStore(tmp_path_factory.mktemp("data"), durable=False)
    store.save(1, {"part": State(data=data)})
    assert store.load().parts["part"].data == data


def test_random_generator_state_survives(store: CheckpointStore) -> None:
    rng = stream(7, "actor", 1)
    rng.random(5)
    store.save(1, {"rng": State(data=generator_state(rng))})
    expected = rng.random(4)
    other = stream(0, "actor", 0)
    restore_generator(other, store.load().parts["rng"].data)
    np.testing.assert_array_equal(other.random(4), expected)


def test_a_part_without_content_is_still_a_part(store: CheckpointStore) -> None:
    store.save(1, {"nothing": State()})
    assert store.load(parts=["nothing"]).parts == {"nothing": State()}


def test_nan_survives_in_data(store: CheckpointStore) -> None:
    store.save(1, {"part": State(data={"x": math.nan, "y": math.inf})})
    data = store.load().parts["part"].data
    assert math.isnan(data["x"])
    assert data["y"] == math.inf


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State(data={"groups": [{0: 1}]}), "the key 0"),
        (State(data={"x": object()}), "not JSON"),
        (State(arrays={"x": np.array(["text"])}), "array 'x'"),
        (State(arrays={"x": torch.ones(2, dtype=torch.complex128)}), "tensor 'x'"),
        (State(arrays={"x": torch.ones(2, 2).to_sparse()}), "tensor 'x'"),
    ],
)
def test_what_cannot_be_saved_exactly_is_refused(
    store: CheckpointStore, state: State, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        store.save(1, {"part": state})
    assert names(store) == []


@pytest.mark.parametrize("name", ["manifest", "a/b", "", "..", "a b"])
def test_names_of_parts_are_file_names(store: CheckpointStore, name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        store.save(1, {name: State(data={"x": 1})})


def test_identical_weights_give_identical_bytes(store: CheckpointStore) -> None:
    arrays = {"b": torch.ones(3), "a": torch.zeros(2, 2), "é": torch.ones(())}
    one = store.save(1, {"weights": State(arrays=dict(arrays))})
    two = store.save(2, {"weights": State(arrays=dict(reversed(arrays.items())))})
    content = (one / "weights.safetensors").read_bytes()
    assert content == (two / "weights.safetensors").read_bytes()
    assert content == safetensors.torch.save(arrays)
    with safe_open(one / "weights.safetensors", framework="np") as file:
        assert file.metadata() is None


def test_files_are_readable_by_colleagues(store: CheckpointStore) -> None:
    before = os.umask(0o022)
    try:
        path = store.save(1, parts())
    finally:
        os.umask(before)
    assert (path / "weights.safetensors").stat().st_mode & 0o777 == 0o644
    assert path.stat().st_mode & 0o777 == 0o755


def test_only_the_parts_asked_for_are_read(store: CheckpointStore) -> None:
    path = store.save(1, parts())
    flip_bit(path / "replay.safetensors", 8 * 20)
    loaded = store.load(1, parts=["weights", "counters"])
    assert list(loaded.parts) == ["weights", "counters"]
    with pytest.raises(DamagedError, match=r"replay\.safetensors"):
        store.load(1, parts=["replay"])


def test_an_unknown_part_is_named(store: CheckpointStore) -> None:
    store.save(1, parts())
    with pytest.raises(UserError, match="no part 'optimizer'; it has weights, replay, counters"):
        store.load(parts=["optimizer"])


def test_no_pickle_is_ever_read() -> None:
    source = Path(checkpoint_files.__file__).read_text()
    assert "pickle" not in source
    assert "torch.load" not in source


def test_bit_flip_anywhere_is_found_or_harmless(store: CheckpointStore) -> None:
    good = store.save(10, parts(3.0))
    expected = store.load(10).parts
    rng = random.Random(0)
    for file in sorted(good.iterdir()):
        original = file.read_bytes()
        for _ in range(60):
            flip_bit(file, rng.randrange(8 * len(original)))
            try:
                loaded = store.load(10).parts
            except DamagedError as error:
                found = str(error)
            else:  # only white space of the manifest may differ unseen
                found = file.name if file.name == "manifest.json" else "nothing"
                assert loaded["counters"] == expected["counters"]
                assert torch.equal(loaded["weights"].arrays["a"], expected["weights"].arrays["a"])
            assert file.name in found
            file.write_bytes(original)
