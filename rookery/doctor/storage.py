"""Where runs are written: room, speed, kind of disk; and where libraries write."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rookery.doctor.finding import Finding, Wanted, note, ok, problem, size, warning

PROBE_BYTES = 4 << 20
LOW_BYTES = 1 << 30
NONE_BYTES = 20 << 20
SLOW_SECS = 2.0
"""A checkpoint would wait noticeably if so few bytes take so long."""
NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "fuse.sshfs")


def runs(wanted: Wanted) -> Iterator[Finding]:
    """Write, sync and remove a few megabytes where runs would be."""
    where = wanted.where.absolute()
    place = nearest_directory(where)
    if place is None:
        yield problem("runs", f"{where} is below a file", "choose another place with --run DIR")
        return
    free = shutil.disk_usage(place).free
    kind = file_system(place)
    try:
        secs = write_probe(place)
    except OSError as error:
        text = f"{place} cannot be written: {error.strerror}"
        yield problem("runs", text, "choose another place with --run DIR", file_system=kind)
        return
    speed = PROBE_BYTES / max(secs, 1e-9)
    text = f"{size(free)} free in {place}, {size(speed)}/s written and synced"
    data = {"free_bytes": free, "bytes_per_s": speed, "file_system": kind}
    if free < NONE_BYTES:
        yield problem("runs", text, "free some space or choose another --run DIR", **data)
    elif free < LOW_BYTES:
        yield warning("runs", text, "free some space or lower checkpoint.keep", **data)
    elif secs > SLOW_SECS:
        yield warning("runs", text, "choose a faster disk with --run DIR", **data)
    else:
        yield ok("runs", text, **data)
    if is_network(kind):
        text = f"{kind} is a network: slower, and locks may not hold between machines"
        yield note("file system", text, "", file_system=kind)
    else:
        yield ok("file system", kind, file_system=kind)


def nearest_directory(path: Path) -> Path | None:
    """The directory at ``path``, or the one it would be made in; None if a file is in the way."""
    for place in (path, *path.parents):
        if place.is_dir():
            return place
        if place.exists():
            return None
    return None


def write_probe(place: Path) -> float:
    """Seconds to write and sync :data:`PROBE_BYTES` in ``place``."""
    data = os.urandom(PROBE_BYTES)
    begun = time.monotonic()
    with tempfile.TemporaryFile(dir=place, prefix=".tmp-doctor-") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return time.monotonic() - begun


def file_system(place: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds ``place``."""
    best, kind = -1, "unknown"
    target = place.resolve()
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return kind
    for line in lines:
        head, _, tail = line.partition(" - ")
        point = head.split()[4].replace("\\040", " ")
        if target.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), tail.split()[0]
    return kind


def is_network(kind: str) -> bool:
    """Whether files of this type are on another machine."""
    return kind.startswith(NETWORK)


def temporary(wanted: Wanted) -> Iterator[Finding]:
    """Whether there is somewhere for temporary files."""
    try:
        place = Path(tempfile.gettempdir())
        with tempfile.TemporaryFile(dir=place):
            yield ok("temporary files", f"{place}, {size(shutil.disk_usage(place).free)} free")
    except OSError as error:
        yield problem("temporary files", f"cannot be written: {error}", "set TMPDIR to a directory")


def home(wanted: Wanted, place: Path | None = None) -> Iterator[Finding]:
    """Whether libraries can keep their caches."""
    place = place or Path.home()
    try:
        with tempfile.TemporaryFile(dir=place):
            yield ok("home", f"{place} is writable")
    except OSError as error:
        text = f"{place} cannot be written ({error.strerror}); libraries keep caches there"
        yield warning("home", text, "set HOME, or XDG_CACHE_HOME and MPLCONFIGDIR")
