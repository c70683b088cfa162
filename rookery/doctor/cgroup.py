"""What the control groups of this process allow: the limits of a container or a batch job.

Version 2 has one tree, version 1 one for each controller. A limit of any group above counts too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60
"""Version 1 writes a huge number where there is no limit."""


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The groups of a process: ``root`` is where they are mounted, ``membership`` says which."""

    root: Path = Path("/sys/fs/cgroup")
    membership: Path = Path("/proc/self/cgroup")

    def cpus(self) -> float | None:
        """Processors' worth of time, None if there is no limit."""
        found = []
        for group in self._groups("cpu"):
            quota, period = (
                _words(group / "cpu.max")
                or (
                    *_words(group / "cpu.cfs_quota_us"),
                    *_words(group / "cpu.cfs_period_us"),
                )
                or ("max", "")
            )
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                found.append(int(quota) / int(period))
        return min(found, default=None)

    def memory_bytes(self) -> int | None:
        """The memory limit, None if there is none."""
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        limits = [limit for limit in self._numbers("memory", names) if limit < _UNLIMITED_BYTES]
        return min(limits, default=None)

    def memory_used_bytes(self) -> int | None:
        """Memory used by the innermost group that counts it, but for files that are only cached."""
        names = ("memory.current", "memory.usage_in_bytes")
        for group in self._groups("memory"):
            for name in names:
                for word in _words(group / name):
                    if word.isdigit():
                        return max(int(word) - _cached_bytes(group), 0)
        return None

    def processes(self) -> int | None:
        """How many processes and threads there may be, None if there is no limit."""
        return min(self._numbers("pids", ("pids.max",)), default=None)

    def _numbers(self, controller: str, names: tuple[str, ...]) -> Iterator[int]:
        for group in self._groups(controller):
            for name in names:
                for word in _words(group / name):
                    if word.isdigit():
                        yield int(word)

    def _groups(self, controller: str) -> Iterator[Path]:
        """Directories of this process's group and those above it, the innermost first."""
        try:
            lines = self.membership.read_text().splitlines()
        except OSError:
            lines = []
        places = [(self.root, "/")]
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if not controllers:
                places.insert(0, (self.root, path))
            elif controller in controllers.split(","):
                places += [(self.root / controllers, path), (self.root / controller, path)]
        seen = set()
        for top, path in places:
            inside = top / path.lstrip("/")
            for group in (inside, *inside.parents):
                if group.is_relative_to(top) and group not in seen:
                    seen.add(group)
                    yield group


def _cached_bytes(group: Path) -> int:
    """What the kernel takes back from files when memory is asked for."""
    words = _words(group / "memory.stat")
    stat = dict(zip(words[::2], words[1::2], strict=False))
    for names in (("total_inactive_file", "total_active_file"), ("inactive_file", "active_file")):
        if names[0] in stat:
            return sum(int(stat.get(name, "0")) for name in names)
    return 0


def _words(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text().split())
    except OSError:
        return ()
