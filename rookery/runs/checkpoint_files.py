"""One checkpoint on disk: a directory of safetensors and JSON files and a manifest that seals them.

Each part of a run (weights, optimizer, replay, ...) hands over a :class:`State`: arrays and JSON
data. The manifest lists the files of every part with their sizes and checksums, and has a checksum
of its own. Nothing in a checkpoint can run code when it is read::

    write_checkpoint(temp, steps, serial, {"weights": State(arrays=weights)}, durable=True)
    checkpoint = read_checkpoint(path, ["weights"])      # reads and verifies only this part

The directory is called by its steps, ``<steps>/`` of 12 digits.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.core.errors import UserError
from rookery.runs.atomic import sync_directory
from rookery.runs.tensorfile import (
    DamagedError,
    SavedArrays,
    is_tensor,
    json_bytes,
    read_arrays,
    safetensors_chunks,
)

MANIFEST = "manifest.json"
OLD_PREFIX = ".old-"
"""How the name of a checkpoint begins that is being replaced by one of the same steps."""

_FORMAT, _VERSION = "rookery-checkpoint", 1
_DIGITS = 12


LEARNER_PARTS = ("weights", "optimizer", "learner")
"""The parts that everyone who learns goes on from."""


def episodes_part(replica: int, role: str = "") -> str:
    """The part with the episodes of one that acts, or of a ``role`` that follows them, which is
    saved where roles take turns."""
    return f"{role or 'actor'}-{replica}"


@dataclass(slots=True)
class State:
    """What one part of a run saves: named arrays, and JSON data (keys are strings)."""

    arrays: SavedArrays = field(default_factory=dict)
    """NumPy arrays come back as NumPy arrays, tensors as tensors in CPU memory."""
    data: dict[str, Any] = field(default_factory=dict)
    """Comes back equal; tuples become lists, as JSON has only those."""


@dataclass(slots=True)
class Checkpoint:
    """A checkpoint read from disk: the parts asked for, each verified."""

    path: Path
    steps: int
    parts: dict[str, State]


def directory_name(steps: int) -> str:
    """The name of the directory of the checkpoint of ``steps``."""
    if not 0 <= steps < 10**_DIGITS:
        raise ValueError(f"steps={steps} does not fit the name of a checkpoint")
    return f"{steps:0{_DIGITS}d}"


def steps_of(name: str) -> int | None:
    """The steps of the checkpoint in a directory of this name, or None if it is not of one."""
    digits = name.removeprefix(OLD_PREFIX)
    if len(digits) == _DIGITS and digits.isascii() and digits.isdigit():
        return int(digits)
    return None


def write_checkpoint(
    directory: Path, steps: int, serial: int, parts: Mapping[str, State], *, durable: bool
) -> None:
    """Fill an empty ``directory``; ``serial`` counts the checkpoints of a run as they are saved."""
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "steps": steps,
        "serial": serial,
        "parts": {name: write_part(directory, name, part, durable) for name, part in parts.items()},
    }
    _write_file(directory / MANIFEST, [_sealed(manifest)], durable)
    if durable:
        sync_directory(directory)


def write_part(directory: Path, name: str, part: State, durable: bool) -> dict[str, Any]:
    """Write the files of one part; returns its entry in the manifest."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name) or name == Path(MANIFEST).stem:
        raise ValueError(f"'{name}' is not a name for a part of a checkpoint")
    files: dict[str, Any] = {}
    if part.arrays:
        file = f"{name}.safetensors"
        files[file] = _write_file(directory / file, safetensors_chunks(name, part.arrays), durable)
    if part.data:
        file = f"{name}.json"
        files[file] = _write_file(directory / file, [json_bytes(name, part.data)], durable)
    numpy = sorted(key for key, array in part.arrays.items() if not is_tensor(array))
    return {"files": files, "numpy": numpy}


def read_checkpoint(path: Path, names: list[str] | None) -> Checkpoint:
    """Read and verify the parts called ``names`` (None: all) of the checkpoint in ``path``."""
    manifest = read_manifest(path)
    listed = manifest["parts"]
    wanted = list(listed) if names is None else names
    for name in wanted:
        if name not in listed:
            raise UserError(
                f"checkpoint {path} has no part '{name}'; it has {', '.join(listed) or 'none'}"
            )
    return Checkpoint(
        path=path,
        steps=manifest["steps"],
        parts={name: read_part(path, name, listed[name]) for name in wanted},
    )


def read_part(directory: Path, name: str, entry: dict[str, Any]) -> State:
    """The part of this ``entry`` in the manifest, verified."""
    state = State()
    for file, listed in entry["files"].items():
        path = directory / file
        _verify(path, listed)
        if path.suffix == ".json":
            state.data = json.loads(path.read_bytes())
        else:
            state.arrays = read_arrays(path, set(entry["numpy"]))
    return state


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the checkpoint in ``path``, verified against its own checksum."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise DamagedError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise DamagedError(f"{MANIFEST} cannot be read ({error.strerror})") from error
    except ValueError:
        raise DamagedError(f"{MANIFEST} is not valid JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise DamagedError(f"{MANIFEST} is not of a Rookery checkpoint")
    if manifest.get("version") != _VERSION:
        raise DamagedError(
            f"{MANIFEST} is of format version {manifest.get('version')}, "
            f"this Rookery reads version {_VERSION}"
        )
    seal = manifest.pop("sha256", None)
    if seal != hashlib.sha256(_canonical(manifest)).hexdigest():
        raise DamagedError(f"{MANIFEST} was altered (checksum differs)")
    steps = steps_of(path.name)
    if steps is not None and steps != manifest["steps"]:
        raise DamagedError(f"{MANIFEST} is of another checkpoint ({manifest['steps']} steps)")
    return manifest


def check_sizes(path: Path, manifest: dict[str, Any]) -> None:
    """Raise :class:`DamagedError` unless every file listed is there in its full size."""
    for entry in manifest["parts"].values():
        for file, listed in entry["files"].items():
            _check_size(path / file, listed)


def _sealed(manifest: dict[str, Any]) -> bytes:
    seal = hashlib.sha256(_canonical(manifest)).hexdigest()
    return json.dumps(manifest | {"sha256": seal}, indent=1).encode() + b"\n"


def _canonical(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()


def _write_file(path: Path, chunks: Iterable[bytes | memoryview], durable: bool) -> dict[str, Any]:
    """Write ``chunks``; returns the file's entry in the manifest. The sum is taken on the way."""
    digest = hashlib.sha256()
    size = 0
    with open(path, "xb") as file:
        for chunk in chunks:
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    return {"sha256": digest.hexdigest(), "bytes": size}


def _verify(path: Path, listed: dict[str, Any]) -> None:
    _check_size(path, listed)
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from error
    if digest != listed["sha256"]:
        raise DamagedError(f"{path.name} was altered (checksum differs)")


def _check_size(path: Path, listed: dict[str, Any]) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        raise DamagedError(f"{path.name} is missing") from None
    if size != listed["bytes"]:
        raise DamagedError(f"{path.name} has {size} bytes instead of {listed['bytes']}")
