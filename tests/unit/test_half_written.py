"""Saving that is cut short, by a kill or by the disk, leaves whole checkpoints and nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rookery.runs import checkpoint_files
from rookery.runs.atomic import WriteError, write_atomic
from rookery.runs.checkpoint import CheckpointStore
from rookery.runs.checkpoint_files import State
from rookery.runs.half_written import claimed
from tests.unit.checkpoint_parts import names, parts


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run" / "checkpoints", durable=False)


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
    with claimed(alive):
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

    monkeypatch.setattr(checkpoint_files, "json_bytes", interrupted)
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
    from rookery.runs.checkpoint import CheckpointStore
    from rookery.runs.checkpoint_files import State

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


@pytest.mark.slow
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
