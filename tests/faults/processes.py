"""Real runs in real processes, found and counted by their titles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.forks import forked

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECS = 90.0


def start(run: Path, *flags: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """``rookery train`` of a slow little world under ``local``, in the background."""
    return forked(
        "train",
        *flags,
        "--run",
        str(run),
        cwd=ROOT,
        env=os.environ | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def members(run: Path) -> dict[str, int]:
    """Names and pids of the processes of the run's roles."""
    return {name: pid for name, pid in everyone(run).items() if name != "fork-server"}


def everyone(run: Path) -> dict[str, int]:
    """Names and pids of the run's processes, by their titles: roles, and who started them."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            said = title(int(entry.name))
            if said.startswith("rookery ") and said.endswith(f" {run.name}"):
                found[said.split()[1]] = int(entry.name)
    return found


def title(pid: int | None) -> str:
    """What a process calls itself; nothing if it is gone."""
    entry = Path(f"/proc/{pid}")
    try:
        if "State:\tZ" in (entry / "status").read_text():
            return ""
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (OSError, ProcessLookupError):
        return ""


def parent(pid: int) -> int | None:
    """Who has started a process; None if that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ProcessLookupError):
        return None


def until(condition: Callable[[], Any], what: str, timeout_secs: float = PATIENCE_SECS) -> Any:
    """Poll until ``condition`` gives something."""
    deadline = time.monotonic() + timeout_secs
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {timeout_secs:g} s for {what}")


def steps(run: Path) -> int:
    """The last step written down."""
    last = 0
    for record in records(run):
        last = record["steps"]
    return last


def records(run: Path) -> Iterator[dict[str, Any]]:
    path = run / "metrics.jsonl"
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def shared_memory() -> set[str]:
    """Names in /dev/shm: the engine must never add one."""
    return set(os.listdir("/dev/shm"))


def own_name() -> str:
    """A name for a run whose processes are looked for; others that run now may be called alike."""
    return f"run-{uuid.uuid4().hex[:12]}"


def own_run(tmp_path: Path) -> Iterator[Path]:
    """A run directory; afterwards nobody of it may live and shared memory must be as before."""
    path = tmp_path / own_name()
    before = shared_memory()
    yield path
    for pid in everyone(path).values():
        kill(pid)
    until(lambda: shared_memory() <= before, "shared memory to be gone", timeout_secs=10)
