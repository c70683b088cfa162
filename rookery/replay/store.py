"""Snapshots of replay on disk, of which each writes only what changed since the one before.

::

    store = ReplayStore(run.path / "replay")
    store.save(steps, replay.table, replay.state_data())
    store.prune(keep=[...])
    arrays, data = store.load(steps)

A snapshot is a list, ``<steps>.json``, that names a file and its checksum for each array, and holds
the rest of the state. Lists share files; a file that no list names is removed. The list is written
last, so a snapshot is there as a whole or not at all.
"""

from __future__ import annotations

import io
import json
import secrets
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.core.errors import UserError
from rookery.core.spec import Array, Arrays
from rookery.replay.table import Table
from rookery.runs.atomic import TEMP_PREFIX, write_atomic, writing

_FORMAT = 1


class _File(NamedTuple):
    """Where an array lies."""

    name: str
    checksum: int
    num_bytes: int


class ReplayStore:
    """The snapshots of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, _File] = {}
        self._revision = -1
        """What the last snapshot holds, and the table's revision then."""
        self.written_bytes = 0
        """Of the last snapshot: what was not there yet."""

    def save(self, steps: int, table: Table, data: dict[str, Any]) -> None:
        """Write what changed, then the list of everything."""
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            files: dict[str, _File] = {}
            self.written_bytes = 0
            for part in table.snapshot(newer_than=self._revision):
                if part.array is not None:
                    files[part.name] = self._write(part.name, part.array)
                else:
                    files[part.name] = self._files[part.name]
            record = {"format": _FORMAT, "steps": steps, "files": files, "data": data}
            text = json.dumps(record | {"table": table.state_data()})
            write_atomic(self._list(steps), text.encode())
        self._files, self._revision = files, table.revision

    def load(self, steps: int) -> tuple[Arrays, dict[str, Any], dict[str, Any]]:
        """Arrays, the table's data and the rest of a snapshot; what is saved next builds on it."""
        path = self._list(steps)
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"replay snapshot {path} cannot be read: {error}") from error
        if record.get("format") != _FORMAT:
            raise UserError(f"replay snapshot {path} is of another version of Rookery")
        files = {name: _File(*where) for name, where in record["files"].items()}
        arrays = {name: self._read(file) for name, file in files.items()}
        self._files, self._revision = files, int(record["table"]["revision"])
        return arrays, record["table"], record["data"]

    def available(self) -> list[int]:
        """Steps of the snapshots there are, in order."""
        return sorted(
            int(path.stem) for path in self.directory.glob("*.json") if path.stem.isdigit()
        )

    def newest(self, until: int, since: Collection[int] = ()) -> int | None:
        """Steps of the newest snapshot of this past: up to ``until``, where it began, or among
        those written ``since``; others beyond may be of another future of the same checkpoint."""
        past = [steps for steps in self.available() if steps <= until or steps in since]
        return past[-1] if past else None

    def prune(self, keep: Collection[int]) -> None:
        """Remove all snapshots but those of ``keep``, the files that only they had, and what a
        writer left half-written that was killed."""
        named = set()
        for steps in self.available():
            if steps not in keep:
                self._list(steps).unlink(missing_ok=True)
                continue
            record = json.loads(self._list(steps).read_text())
            named |= {where[0] for where in record["files"].values()}
        for path in self.directory.glob("*.npy"):
            if path.name not in named:
                path.unlink(missing_ok=True)
        for path in self.directory.glob(f"{TEMP_PREFIX}*"):
            path.unlink(missing_ok=True)

    def _list(self, steps: int) -> Path:
        return self.directory / f"{steps}.json"

    def _write(self, name: str, array: Array) -> _File:
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
        data = buffer.getvalue()
        # A table that went back to an earlier snapshot repeats its revisions with other contents.
        place = f"{name.replace('/', '.')}.{secrets.token_hex(6)}.npy"
        file = _File(place, zlib.crc32(data), len(data))
        write_atomic(self.directory / file.name, data)
        self.written_bytes += len(data)
        return file

    def _read(self, file: _File) -> Array:
        path = self.directory / file.name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"replay snapshot: {path} cannot be read: {error}") from error
        if (zlib.crc32(data), len(data)) != (file.checksum, file.num_bytes):
            raise UserError(
                f"replay snapshot: {path} is damaged; remove {self.directory}, and a resumed run "
                "fills its replay anew"
            )
        array: Array = np.load(io.BytesIO(data), allow_pickle=False)
        return array
