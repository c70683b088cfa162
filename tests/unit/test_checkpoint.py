from __future__ import annotations

import errno
import json
import logging
import math
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
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
from rookery.runs import checkpoint as checkpoint_module
from rookery.runs.atomic import WriteError, write_atomic
from rookery.runs.checkpoint import (
    CheckpointStore,
    DamagedError,
    State,
    find_checkpoint,
    load_checkpoint,
)


def parts(value: float = 1.0) -> dict[str, State]:
    return {
        "weights": State(arrays={"b": torch.full((3,), value), "a": torch.full((2, 2), value)}),
        "replay": State(arrays={"obs": np.arange(6, dtype=np.uint8)}, data={"next": 3}),
        "counters": State(data={"updates": int(value)}),
    }


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run" / "checkpoints", durable=False)


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


def flip_bit(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


# ---- what is written, and that it comes back


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
    source = Path(checkpoint_module.__file__).read_text()
    assert "pickle" not in source
    assert "torch.load" not in source


# ---- which checkpoint


def test_load_by_steps_name_and_path(store: CheckpointStore) -> None:
    for steps in (10, 20, 30):
        store.save(steps, parts(steps))
    store.mark_best(20, {"return_mean": 5.0})
    assert store.steps_available() == [10, 20, 30]
    assert store.load().steps == 30
    assert store.load(10).parts["counters"].data == {"updates": 10}
    assert store.load("20").steps == 20
    assert store.load("best").steps == 20
    assert store.load(store.directory / "000000000010").steps == 10


def test_what_is_not_there_is_said(store: CheckpointStore) -> None:
    assert store.steps_available() == []
    assert store.best_score() is None
    with pytest.raises(UserError, match=r"no checkpoint in .* yet"):
        store.load()
    store.save(10, parts())
    with pytest.raises(UserError, match=r"no checkpoint of 11 steps in .*there are 10"):
        store.load(11)
    with pytest.raises(UserError, match="unknown checkpoint 'newest'; use latest, best or"):
        store.load("newest")
    with pytest.raises(UserError, match=r"no best checkpoint .* --checkpoint latest"):
        store.load("best")


def test_best_is_a_link_and_a_score(store: CheckpointStore) -> None:
    store.save(10, parts())
    store.mark_best(10, {"return_mean": 5.5, "episodes": 10})
    assert os.readlink(store.directory / "best") == "000000000010"
    assert store.best_score() == {"return_mean": 5.5, "episodes": 10}
    store.save(20, parts())
    store.mark_best(20, {"return_mean": 6.0})
    assert store.load("best").steps == 20
    assert store.best_score() == {"return_mean": 6.0}
    with pytest.raises(UserError, match="no such checkpoint"):
        store.mark_best(30, {"return_mean": 7.0})


def test_latest_is_the_last_saved_also_after_going_back(store: CheckpointStore) -> None:
    for steps in (10, 20, 30, 40, 50):
        store.save(steps, parts())
    store.save(15, parts())  # a run resumed from 10
    assert store.load().steps == 15
    assert store.find() == store.directory / "000000000015"
    assert store.steps_available() == [15, 20, 30, 40, 50]


# ---- pruning


def test_prune_keeps_newest_best_and_protected(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=2, durable=False)
    store.save(1, parts())
    store.mark_best(1, {"score": 1})
    store.save(2, parts())
    store.protect(2)
    for steps in (3, 4, 5):
        store.save(steps, parts())
    assert store.steps_available() == [1, 2, 4, 5]
    store.release(2)
    store.save(6, parts())
    assert store.steps_available() == [1, 5, 6]
    store.mark_best(6, {"score": 2})
    store.save(7, parts())
    assert store.steps_available() == [6, 7]
    assert not [name for name in names(store) if name.startswith(".")]


def test_prune_leaves_what_is_not_ours(tmp_path: Path) -> None:
    foreign = tmp_path / "000000000001"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    store = CheckpointStore(tmp_path, keep=1, durable=False)
    store.save(2, parts())
    store.save(3, parts())
    assert (foreign / "notes.txt").read_text() == "mine"
    assert store.steps_available() == [1, 3]


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keep=0"):
        CheckpointStore(tmp_path, keep=0)


# ---- damage


def damage_truncate(path: Path) -> None:
    os.truncate(path / "weights.safetensors", 40)


def damage_flip(path: Path) -> None:
    flip_bit(path / "weights.safetensors", 8 * 20)


def damage_missing_file(path: Path) -> None:
    (path / "weights.safetensors").unlink()


def damage_missing_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def damage_torn_manifest(path: Path) -> None:
    os.truncate(path / "manifest.json", 30)


def damage_foreign(path: Path) -> None:
    (path / "manifest.json").write_text('{"format": "other"}')


def damage_newer_version(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"version": 1', '"version": 99'))


def damage_other_steps(path: Path) -> None:
    shutil.copy(path.parent / "000000000010" / "manifest.json", path / "manifest.json")


DAMAGES = [
    (damage_truncate, r"weights\.safetensors has 40 bytes instead of"),
    (damage_flip, r"weights\.safetensors was altered"),
    (damage_missing_file, r"weights\.safetensors is missing"),
    (damage_missing_manifest, r"manifest\.json is missing"),
    (damage_torn_manifest, r"manifest\.json is not valid JSON"),
    (damage_foreign, r"manifest\.json is not of a Rookery checkpoint"),
    (damage_newer_version, r"format version 99"),
    (damage_other_steps, r"another checkpoint"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
def test_damaged_latest_falls_back_and_says_so(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture, damage: Any, words: str
) -> None:
    for steps in (10, 20, 30):
        store.save(steps, parts())
    damage(store.directory / "000000000030")
    with caplog.at_level(logging.WARNING):
        assert store.load().steps == 20
    assert len(caplog.messages) == 1
    assert "000000000030" in caplog.text
    assert "000000000020" in caplog.text
    with pytest.raises(DamagedError, match=words) as explicit:
        store.load(30)
    message = str(explicit.value)
    assert "000000000030" in message
    assert "--checkpoint latest" in message
    assert "\n" not in message


def test_damaged_best_is_an_error(store: CheckpointStore) -> None:
    path = store.save(10, parts())
    store.mark_best(10, {"score": 1})
    store.save(20, parts())
    damage_truncate(path)
    with pytest.raises(DamagedError, match=r"weights\.safetensors.*--checkpoint latest"):
        store.load("best")
    shutil.rmtree(path)
    with pytest.raises(UserError, match=r"best checkpoint .* is missing"):
        store.load("best")


def test_none_valid_is_an_error(store: CheckpointStore) -> None:
    for steps in (10, 20):
        damage_truncate(store.save(steps, parts()))
    with pytest.raises(UserError, match=r"no valid checkpoint in .*0020 .*0010 ") as error:
        store.load()
    assert "\n" not in str(error.value)


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


def test_a_running_trainer_prunes_while_we_read(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.save(10, parts())
    trainer = CheckpointStore(store.directory, keep=1, durable=False)
    real = checkpoint_module._read_part
    calls = []

    def read_part(directory: Path, *rest: Any) -> State:
        if not calls:
            calls.append(directory)
            trainer.save(20, parts())  # removes 10
        return real(directory, *rest)

    monkeypatch.setattr(checkpoint_module, "_read_part", read_part)
    assert store.load().steps == 20
    assert caplog.messages == []


# ---- atomic


def test_same_steps_are_replaced(store: CheckpointStore) -> None:
    store.save(10, parts(1.0))
    store.save(10, parts(2.0))
    assert store.load(10).parts["counters"].data == {"updates": 2}
    assert names(store) == ["000000000010", "latest"]


def test_failed_replacement_leaves_the_old(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(10, parts(1.0))
    real = os.rename

    def rename(source: Any, target: Any) -> None:
        if Path(source).name.startswith(".tmp-"):
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(WriteError, match="Input/output error"):
        store.save(10, parts(2.0))
    assert store.load(10).parts["counters"].data == {"updates": 1}
    assert names(store) == ["000000000010", "latest"]


def test_replacement_cut_short_by_a_kill(store: CheckpointStore) -> None:
    path = store.save(10, parts(1.0))
    aside = path.with_name(".old-" + path.name)
    path.rename(aside)  # the instant between the two renames
    assert store.steps_available() == [10]
    assert store.load().parts["counters"].data == {"updates": 1}
    assert store.load(10).steps == 10
    store.save(20, parts(2.0))
    assert names(store) == ["000000000010", "000000000020", "latest"]
    shutil.copytree(path, aside)  # the instant before the old one is deleted
    store.save(30, parts(3.0))
    assert not aside.exists()
    assert store.steps_available() == [10, 20, 30]


def test_leftovers_of_the_dead_are_removed_and_of_the_living_kept(store: CheckpointStore) -> None:
    store.directory.mkdir(parents=True)
    dead = store.directory / ".tmp-000000000005-1-aa"
    alive = store.directory / ".tmp-000000000006-2-bb"
    for path in (dead, alive):
        path.mkdir()
        (path / "weights.safetensors").write_bytes(b"half")
    with checkpoint_module._claimed(alive):
        store.save(10, parts())
        assert not dead.exists()
        assert alive.exists()
    store.save(20, parts())
    assert names(store) == ["000000000010", "000000000020", "latest"]


def test_an_interrupt_leaves_nothing_behind(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(10, parts())

    def interrupted(*_: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_module, "json_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.save(20, parts())
    assert names(store) == ["000000000010", "latest"]


def test_durable_syncs_every_file_and_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    CheckpointStore(tmp_path / "quick", durable=False).save(1, parts())
    assert synced == []
    path = CheckpointStore(tmp_path / "safe").save(1, parts())
    assert {file.name for file in path.iterdir()} <= set(synced)
    assert synced.count("safe") == 2  # once for the checkpoint, once for the link
    assert any(name.startswith(".tmp-") for name in synced)


KILLED_SAVER = textwrap.dedent("""
    import os, random, signal, struct, sys, time
    import torch
    from pathlib import Path
    from rookery.runs.checkpoint import CheckpointStore, State

    torch.set_num_threads(1)
    store = CheckpointStore(Path(sys.argv[1]), keep=3, durable=False)
    rng = random.Random(0)

    def save_for_ever(first, acknowledge):
        for n in range(first, 10**9):
            weights = {"w": torch.full((2000,), float(n)), "v": torch.full((7,), float(n))}
            steps = n // 2  # every second save replaces a checkpoint
            store.save(steps, {"weights": State(arrays=weights), "count": State(data={"n": n})})
            store.mark_best(steps - steps % 10, {"n": n}) if steps % 10 == 0 else None
            os.write(acknowledge, struct.pack("q", n))

    first = 0
    for kill in range(30):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            save_for_ever(first, writer)
        os.close(writer)
        acknowledged = os.read(reader, 8)  # at least one save, then some random time
        time.sleep(rng.random() * 0.03)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while data := os.read(reader, 8):
            acknowledged = data
        os.close(reader)
        last = struct.unpack("q", acknowledged)[0]
        for steps in store.steps_available():
            parts = store.load(steps).parts
            n = float(parts["count"].data["n"])
            assert n // 2 == steps and bool((parts["weights"].arrays["w"] == n).all())
        newest = store.load("latest").parts["count"].data["n"]
        assert last <= newest <= last + 1, (last, newest)
        assert store.best_score() is None or store.load("best")
        first = newest + 1
    store.save(first // 2, {"count": State(data={"n": first})})
    left = [name for name in os.listdir(sys.argv[1]) if name.startswith((".tmp-0", ".old-"))]
    assert not left, left
    print("kills survived")
""")


def test_kill_9_while_saving_never_leaves_a_bad_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", KILLED_SAVER, str(tmp_path / "c")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "kills survived\n", done.stderr
    assert "damaged" not in done.stderr


# ---- full and unwritable disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_full_disk(small_disk: Path) -> None:
    store = CheckpointStore(small_disk / "checkpoints")
    store.save(10, parts(1.0))
    store.mark_best(10, {"score": 1})
    before = names(store)
    big = {"weights": State(arrays={"w": torch.zeros(500_000)})}
    for steps in (10, 20):
        with pytest.raises(WriteError, match="disk is full; free some space") as error:
            store.save(steps, big)
        assert str(store.directory) in str(error.value)
        assert "\n" not in str(error.value)
        assert names(store) == before
    assert store.load().parts["counters"].data == {"updates": 1}
    store.save(30, parts())  # there is space again: training can go on
    assert store.load().steps == 30


def test_read_only_disk(small_disk: Path) -> None:
    store = CheckpointStore(small_disk / "checkpoints")
    store.save(10, parts())
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(WriteError, match=r"cannot write .*Read-only"):
        store.save(20, parts())
    with pytest.raises(WriteError, match=r"cannot write .*best\.json"):
        store.mark_best(10, {"score": 1})
    assert store.load().steps == 10


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota is used up"), (errno.EIO, "check")],
)
def test_disk_that_fails_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.save(10, parts())
    before = names(store)

    def fsync(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(WriteError, match=words):
        store.save(20, parts())
    monkeypatch.undo()
    assert names(store) == before
    assert store.load().steps == 10


def test_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(WriteError, match="cannot write"):
        CheckpointStore(tmp_path / "checkpoints").save(1, parts())
    assert CheckpointStore(tmp_path / "checkpoints").steps_available() == []


def test_write_atomic_replaces_or_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"

    def replace(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, b"three")
    assert path.read_bytes() == b"two"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


# ---- from what a user typed


def test_find_checkpoint_from_run_checkpoints_or_one_of_them(store: CheckpointStore) -> None:
    for steps in (10, 20):
        store.save(steps, parts())
    store.mark_best(10, {"score": 1})
    run = store.directory.parent
    ten, twenty = (store.directory / name for name in ("000000000010", "000000000020"))
    assert find_checkpoint(run, None) == twenty
    assert find_checkpoint(run, "best") == ten
    assert find_checkpoint(run, "10") == ten
    assert find_checkpoint(store.directory, None) == twenty
    assert find_checkpoint(ten, None) == ten
    assert find_checkpoint(store.directory / "best", None) == ten
    assert find_checkpoint(ten, "latest") == twenty
    assert load_checkpoint(run).steps == 20
    assert load_checkpoint(ten).steps == 10
    assert load_checkpoint(run, "best", ["counters"]).parts["counters"].data == {"updates": 1}
    os.truncate(twenty / "weights.safetensors", 5)
    assert find_checkpoint(run, None) == ten


def test_a_copied_checkpoint_is_a_checkpoint(store: CheckpointStore, tmp_path: Path) -> None:
    shutil.copytree(store.save(10, parts()), tmp_path / "my-agent")
    assert load_checkpoint(tmp_path / "my-agent").steps == 10


def test_not_a_run_names_the_near_ones(tmp_path: Path) -> None:
    for name in ("ppo-cartpole", "a2c-snake"):
        CheckpointStore(tmp_path / name / "checkpoints", durable=False).save(1, parts())
    (tmp_path / "ppo-cart").mkdir()
    with pytest.raises(UserError, match=r"is not a run directory; did you mean 'ppo-cartpole'\?"):
        find_checkpoint(tmp_path / "ppo-cart", None)
    with pytest.raises(UserError, match=r"does not exist; did you mean 'a2c-snake'\?"):
        find_checkpoint(tmp_path / "a2c-snak", "best")
    with pytest.raises(UserError, match="does not exist; `rookery runs` lists the runs"):
        find_checkpoint(tmp_path / "zzz", None)


def test_run_without_checkpoints_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(UserError, match="no checkpoint in"):
        find_checkpoint(tmp_path, None)
