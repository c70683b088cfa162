"""Processors, memory, clocks: what the machine is, and what of it this process may use."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import rookery
from rookery.doctor.cgroup import Cgroup
from rookery.doctor.finding import Finding, Wanted, note, ok, problem, size, warning

LOW_BYTES = 1 << 30
"""Less free memory than this is worth a warning."""
DRIFT_SECS = 0.02


def usable_cores(
    cgroup: Cgroup | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[int, list[str]]:
    """Cores this process may keep busy, and what limits them."""
    there = os.cpu_count() or 1
    cores, why = len(os.sched_getaffinity(0)), []
    if cores < there:
        why.append(f"affinity {cores} of {there}")
    quota = (cgroup or Cgroup()).cpus()
    if quota is not None and math.ceil(quota) < cores:
        cores = max(1, math.ceil(quota))
        why.append(f"quota {quota:g}")
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        given = environ.get(name, "")
        if given.isdigit() and 0 < int(given) < cores:
            cores = int(given)
            why.append(f"{name} {given}")
            break
    return cores, why


def cores(wanted: Wanted, cgroup: Cgroup | None = None) -> Iterator[Finding]:
    """How many cores there are for us, and how busy they are."""
    number, why = usable_cores(cgroup)
    limits = f" ({', '.join(why)})" if why else ""
    yield ok("cores", f"{number} usable{limits}", usable=number, limits=why)
    load = os.getloadavg()[0]
    text = f"{load:.1f} over the last minute"
    if load > 0.5 * (os.cpu_count() or 1):
        yield note("load", f"{text}: others are working here too", load=load)
    else:
        yield ok("load", text, load=load)


def memory(
    wanted: Wanted, cgroup: Cgroup | None = None, meminfo: Path = Path("/proc/meminfo")
) -> Iterator[Finding]:
    """What is free, within the limit of a container."""
    cgroup = cgroup or Cgroup()
    free, total = free_memory(cgroup, meminfo)
    limit = cgroup.memory_bytes()
    limited = " (limited by its control group)" if limit == total else ""
    text = f"{size(max(free, 0))} free of {size(total)}{limited}"
    data: dict[str, int | None] = {
        "free_bytes": free,
        "total_bytes": total,
        "limit_bytes": limit,
    }
    if wanted.needs is not None:
        data["needed_bytes"] = wanted.needs.total
        text = f"{text}; the run takes about {wanted.needs}"
    if wanted.needs is not None and free < wanted.needs.total:
        remedy = "end other programs, raise the limit, or lower what takes most"
        yield warning("memory", text, remedy, **data)
    elif free < LOW_BYTES:
        yield warning("memory", text, "end other programs or raise the limit", **data)
    else:
        yield ok("memory", text, **data)


def free_memory(
    cgroup: Cgroup | None = None, meminfo: Path = Path("/proc/meminfo")
) -> tuple[int, int]:
    """Bytes that are free, and all there are, within the limit of a container."""
    cgroup = cgroup or Cgroup()
    rows = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(rows["MemAvailable"].split()[0]) * 1024
    total = int(rows["MemTotal"].split()[0]) * 1024
    limit = cgroup.memory_bytes()
    if limit is not None and limit < total:
        return max(min(free, limit - (cgroup.memory_used_bytes() or 0)), 0), limit
    return free, total


def system(wanted: Wanted) -> Iterator[Finding]:
    """The operating system."""
    text = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() == "Linux":
        yield ok("system", text)
    else:
        remedy = "use Linux for engine local; inline may work"
        yield warning("system", f"{text}; only Linux is tested", remedy)


def clock(wanted: Wanted, pause_secs: float = 0.05) -> Iterator[Finding]:
    """Whether time passes evenly and the date can be right."""
    resolution = time.get_clock_info("monotonic").resolution
    wall, steady = time.time(), time.monotonic()
    time.sleep(pause_secs)
    drift = abs((time.time() - wall) - (time.monotonic() - steady))
    installed = Path(rookery.__file__).stat().st_mtime
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(wall))
    data = {"resolution_secs": resolution, "drift_secs": drift, "time": wall}
    if not plausible(wall, installed):
        yield warning("clock", f"{date} is before Rookery was installed", "set the date", **data)
    elif drift > DRIFT_SECS:
        text = f"{date}; the wall clock moved {drift * 1000:.0f} ms against the steady one"
        yield note("clock", f"{text} (Rookery measures with the steady one)", "", **data)
    elif resolution > 1e-3:
        yield note("clock", f"{date}; it ticks only each {resolution * 1000:.0f} ms", "", **data)
    else:
        yield ok("clock", f"{date}; resolution {resolution * 1e9:.0f} ns, no drift", **data)


def plausible(now: float, installed: float, day_secs: float = 86_400.0) -> bool:
    """Whether ``now`` can be the time, given when files were written."""
    return now > installed - day_secs


def shared_memory(wanted: Wanted, shm: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Memory that processes share: ours has no name; other libraries use ``/dev/shm``."""
    try:
        _try_memfd()
        yield ok("memfd", "shared memory without a name works")
    except (OSError, AttributeError) as error:
        remedy = "use --engine inline, or allow memfd_create (seccomp) in the container"
        find = problem if wanted.engine == "local" else warning
        yield find("memfd", f"cannot be had ({error}); engine local needs it", remedy)
    yield _dev_shm(shm)


def _try_memfd() -> None:
    import mmap

    descriptor = os.memfd_create("rookery-doctor", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, 1 << 20)
        with mmap.mmap(descriptor, 1 << 20) as memory:
            memory[-1] = 7
    finally:
        os.close(descriptor)


def _dev_shm(shm: Path) -> Finding:
    try:
        status = os.statvfs(shm)
    except OSError as error:
        return note(str(shm), f"not there ({error.strerror}); Rookery does without", "")
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    text = f"{size(free)} free of {size(total)}"
    data = {"total_bytes": total, "free_bytes": free}
    if total <= 64 << 20 or free < 32 << 20:
        remedy = "start the container with --shm-size=1g (Docker's default is 64 MB)"
        text = f"only {text}; environments and other libraries may need more"
        return warning(str(shm), text, remedy, **data)
    return ok(str(shm), text, **data)
