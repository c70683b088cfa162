"""Frames as bytes: what was packed comes out to the bit, and nothing else is taken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import rookery
from rookery.carriers import wire
from rookery.carriers import wire_pb2 as pb
from rookery.carriers.wire import VERSION, OtherVersionError, WireError, pack, packets, unpack
from rookery.core.spec import Array, Arrays, ArraySpec
from tests.hostile import message, mutated, spoiled

FLOAT, INT, BYTE, BOOL = (np.dtype(name) for name in ("f4", "i8", "u1", "?"))
SPECS = {
    0: {"params": ArraySpec((50,), FLOAT), "version": ArraySpec((1,), INT)},
    7: {
        "obs/obs": ArraySpec((4, 84, 84), BYTE),
        "ended": ArraySpec((4,), BOOL),
        "count": ArraySpec((), INT),
        "none": ArraySpec((0, 3), FLOAT),
    },
}


def spec_of(array: Array) -> ArraySpec:
    return ArraySpec(array.shape, array.dtype)


def same(one: Arrays, other: Arrays) -> bool:
    return list(one) == list(other) and all(
        (array.dtype, array.shape, array.tobytes())
        == (other[name].dtype, other[name].shape, other[name].tobytes())
        for name, array in one.items()
    )


def frame_of(number: int, value: int = 1) -> tuple[int, Arrays]:
    arrays = {name: np.full(spec.shape, value, spec.dtype) for name, spec in SPECS[number].items()}
    return number, arrays


arrays_of_any_kind = hnp.arrays(
    st.sampled_from(["<f4", "<f8", "<i8", "<i4", "|u1", "|b1", ">f4", "<u2", "|i1"]).map(np.dtype),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
)
names = st.text(min_size=1, max_size=20)


frames_of_any_kind = st.dictionaries(
    st.integers(0, 2**32 - 1), st.dictionaries(names, arrays_of_any_kind, max_size=3), max_size=3
)


@settings(max_examples=60, deadline=None)
@given(frames_of_any_kind)
def test_what_was_packed_comes_out_to_the_bit(frames: dict[int, Arrays]) -> None:
    specs = {
        number: {name: spec_of(array) for name, array in arrays.items()}
        for number, arrays in frames.items()
    }
    found = unpack(pack(frames.items()), specs)
    assert [number for number, _ in found] == list(frames)
    assert all(same(arrays, frames[number]) for number, arrays in found)


@pytest.mark.parametrize("compressible", [True, False])
def test_pictures_travel_compressed_only_where_it_saves(compressible: bool) -> None:
    rng = np.random.default_rng(0)
    spec = SPECS[7]["obs/obs"]
    picture = rng.integers(0, 256, spec.shape, BYTE)
    if compressible:
        picture = np.repeat(np.repeat(picture[:, :21, :21], 4, 1), 4, 2)
    data = pack([(7, {"obs/obs": picture})])
    assert (len(data) < picture.nbytes / 3) == compressible
    ((_, found),) = unpack(data, SPECS)
    assert same(found, {"obs/obs": picture})


def test_what_is_not_in_c_order_is_sent_as_if_it_were() -> None:
    array = np.arange(12, dtype=INT).reshape(3, 4).T
    ((_, found),) = unpack(pack([(0, {"x": array})]), {0: {"x": spec_of(array)}})
    assert (found["x"] == array).all()


def test_many_small_frames_are_one_message_and_large_ones_have_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "PACKET_BYTES", 1000)
    frames = [frame_of(0, value) for value in range(10)]  # 208 bytes each
    frames[5:5] = [frame_of(7)]
    messages = list(packets(frames))
    found = [unpack(data, SPECS) for data in messages]
    assert [len(part) for part in found] == [4, 1, 1, 4, 1]
    assert [frame for part in found for frame, _ in part] == [number for number, _ in frames]
    assert list(packets([])) == []
    assert unpack(pack([]), SPECS) == []


def test_frames_together_take_no_more_memory_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small they are compressed."""
    data = pack([frame_of(7) for _ in range(10)])
    assert len(data) < 5000
    monkeypatch.setattr(wire, "PACKET_BYTES", 9 * 28229)
    with pytest.raises(WireError, match="more than 254061 bytes in one message"):
        unpack(data, SPECS)


def test_the_largest_message_follows_from_the_specs() -> None:
    large = {3: {"batch": ArraySpec((1 << 28,), FLOAT)}}
    assert wire.most_bytes(SPECS) == wire.PACKET_BYTES + wire.OVERHEAD_BYTES
    assert wire.most_bytes(SPECS | large) == (1 << 30) + wire.OVERHEAD_BYTES
    assert len(pack([frame_of(7)])) < wire.most_bytes(SPECS)
    assert wire.most_bytes({}) > 0


# ---- what is refused -----------------------------------------------------------------------------


def described(**changes: Any) -> tuple[pb.Packet, bytes]:
    """A frame with one array of relay 0, with something else about it, and its bytes."""
    number = changes.pop("relay", 0)
    packet = pb.Packet(version=changes.pop("version", VERSION))
    data: bytes = changes.pop("data", bytes(200))
    given = {"name": "params", "dtype": "<f4", "shape": [50], "num_bytes": len(data)} | changes
    packet.frames.add(relay=number).arrays.add(**given)
    return packet, data


def packed(**changes: Any) -> bytes:
    return message(*described(**changes))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another relay": ({"relay": 4}, "a frame of relay 4, which is not here"),
    "an unknown array": ({"name": "x"}, "an array 'x' of relay 0, which it does not take"),
    "a long name": ({"name": "x" * 10**6}, "x' of relay 0, which it does not take"),
    "another dtype": ({"dtype": "<f8"}, r"'params' of relay 0 is <f8 \[50\], not <f4 \[50\]"),
    "an object": ({"dtype": "|O"}, r"is \|O \[50\]"),
    "a long dtype": ({"dtype": "f" * 10**6}, "not <f4"),
    "another shape": ({"shape": [5, 10]}, r"is <f4 \[5, 10\], not <f4 \[50\]"),
    "a huge shape": ({"shape": [2**63, 2**63]}, "not <f4"),
    "many axes": ({"shape": [1] * 10**5}, "not <f4"),
    "no shape": ({"shape": []}, "not <f4"),
    "too few bytes": ({"data": b"12"}, "has 2 bytes, not 200"),
    "too many bytes": ({"data": bytes(201)}, "has 201 bytes, not 200"),
    "bad lz4": ({"codec": 1, "data": b"abc"}, "cannot be decompressed"),
    "short lz4": ({"codec": 1, "data": lz4.block.compress(bytes(199), store_size=False)}, "199"),
    "a bomb": (
        {"codec": 1, "data": lz4.block.compress(bytes(10**8), store_size=False)},
        "cannot be decompressed",
    ),
    "another codec": ({"codec": 2}, "has codec 2, which it cannot have"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_the_specs_do_not_say_is_refused(name: str) -> None:
    changes, message = BAD[name]
    with pytest.raises(WireError, match=message) as caught:
        unpack(packed(**changes), SPECS)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_the_packet_that_is_changed_is_good() -> None:
    assert [number for number, _ in unpack(packed(), SPECS)] == [0]


@pytest.mark.parametrize("version", [0, 1, 2**32 - 1])
def test_another_version_is_named_with_ours(version: int) -> None:
    with pytest.raises(OtherVersionError, match=rf"version {version} .*, and here is {VERSION}"):
        unpack(packed(version=version), SPECS)


def test_an_array_comes_once() -> None:
    packet, data = described()
    packet.frames[0].arrays.append(packet.frames[0].arrays[0])
    with pytest.raises(WireError, match="there twice"):
        unpack(message(packet, data, data), SPECS)


@pytest.mark.parametrize(
    ("num_bytes", "extra", "said"),
    [
        (200, 1, "201 bytes of arrays, where 200 were announced"),
        (2**63, 0, "200 bytes of arrays, where 9223372036854775808 were announced"),
        (199, 0, "has 199 bytes, not 200"),
    ],
)
def test_there_are_as_many_bytes_as_were_announced(num_bytes: int, extra: int, said: str) -> None:
    packet, data = described(num_bytes=num_bytes)
    with pytest.raises(WireError, match=said):
        unpack(message(packet, data, bytes(extra)), SPECS)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes that are no message"),
        (b"\5\0\0", "3 bytes that are no message"),
        (b"\5\0\0\0abc", "7 bytes, where 9 were announced"),
        (b"\xff\xff\xff\xff" + bytes(100), "104 bytes, where 4294967299 were announced"),
        (b"\3\0\0\0abc", "3 bytes that are no Packet"),
    ],
)
def test_a_message_begins_with_what_is_in_it(data: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        unpack(data, SPECS)


def test_bools_are_bools() -> None:
    """NumPy takes any byte for one, and then counts wrongly."""
    data = {"name": "ended", "dtype": "|b1", "shape": [4], "data": b"\0\1\2\1", "relay": 7}
    with pytest.raises(WireError, match="neither 0 nor 1"):
        unpack(packed(**data), SPECS)
    data["data"] = b"\0\1\0\1"
    ((_, found),) = unpack(packed(**data), SPECS)
    assert found["ended"].tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (ArraySpec((3,), INT, sizes=(4,)), [0, 3, 1], [0, 4, 1]),
        (ArraySpec((3,), INT, sizes=(4,)), [0, 3, 1], [0, -1, 1]),
        (ArraySpec((2, 2), INT, sizes=(2, 5)), [[1, 4], [0, 0]], [[2, 4], [0, 0]]),
        (ArraySpec((2,), np.dtype("i1"), sizes=(128,)), [0, 127], [0, -128]),
        (ArraySpec((2,), FLOAT, finite=True), [0.0, 1e38], [0.0, np.nan]),
        (ArraySpec((2,), FLOAT, finite=True), [0.0, 1e38], [-np.inf, 0.0]),
    ],
)
def test_values_are_choices_and_numbers_where_they_must_be(
    spec: ArraySpec, good: list[Any], bad: list[Any]
) -> None:
    """A learner would look for what is not there, or learn NaN."""
    ((_, found),) = unpack(pack([(0, {"x": np.array(good, spec.dtype)})]), {0: {"x": spec}})
    assert found["x"].tolist() == np.array(good, spec.dtype).tolist()
    with pytest.raises(WireError, match=r"'x' of relay 0 has (choices beyond|values that are not)"):
        unpack(pack([(0, {"x": np.array(bad, spec.dtype)})]), {0: {"x": spec}})


def test_nothing_is_compressed_where_there_is_nothing() -> None:
    with pytest.raises(WireError, match="codec 1"):
        unpack(packed(relay=7, name="none", shape=[0, 3], codec=1, data=b"\0" * 8), SPECS)


def fuzz(num: int) -> None:
    rng = np.random.default_rng(num)
    seeds = [pack([frame_of(0), frame_of(7)]), pack([frame_of(0, 3)]), packed(), pack([])]
    frames = [frame_of(0), frame_of(7)]
    taken = 0
    for turn in range(num):
        data = mutated(rng, seeds[turn % len(seeds)]) if turn % 2 else spoiled(rng, frames)
        try:
            found = unpack(data, SPECS)
        except WireError:
            continue
        taken += 1
        for number, arrays in found:
            for name, array in arrays.items():
                assert spec_of(array) == SPECS[number][name]
    assert 0 < taken < num / 2


def test_mutated_messages_are_refused_or_whole() -> None:
    fuzz(5000)


@pytest.mark.long
def test_very_many_mutated_messages_are_refused_or_whole() -> None:
    fuzz(1_000_000)


# ---- the generated module ------------------------------------------------------------------------


def test_the_generated_module_is_that_of_the_specification(tmp_path: Path) -> None:
    """If this fails: make proto."""
    root = Path(rookery.__file__).parent.parent
    name = Path("rookery/carriers/wire.proto")
    (tmp_path / name).parent.mkdir(parents=True)
    shutil.copy(root / name, tmp_path / name)
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=."]
    subprocess.run([*command, str(name)], cwd=tmp_path, check=True, timeout=60)
    for suffix in ("_pb2.py", "_pb2.pyi"):
        made = name.with_name(f"wire{suffix}")
        assert (tmp_path / made).read_text() == (root / made).read_text(), made


@pytest.mark.parametrize("package", ["google.protobuf", "grpc"])
def test_a_missing_extra_is_one_line(package: str) -> None:
    code = f"""
import sys
sys.modules["{package}"] = None
from rookery.core.errors import UserError
try:
    import rookery.carriers.grpc
except UserError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "rookery[grpc]" brings it' in done.stdout
    assert done.stdout.count("\n") == 1
