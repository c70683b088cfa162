"""Peak memory of a command with all its processes: `tree_memory.py COMMAND ...`.

Twice a second adds up the Pss of /proc/PID/smaps_rollup over the whole tree: a page that several
processes share counts once in all. Prints one JSON line; the command's own output goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SAMPLE_SECS = 0.5


def tree(root: int) -> set[int]:
    """``root``, whatever descends from it, and what shares its session though its parent died."""
    children: dict[int, list[int]] = {}
    members = {root}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # After the name, which may hold anything: state, parent, group, session.
            _, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # it ended meanwhile
        children.setdefault(int(parent), []).append(int(entry.name))
        if int(session) == root:
            members.add(int(entry.name))
    waiting = list(members)
    while waiting:
        for child in children.get(waiting.pop(), []):
            if child not in members:
                members.add(child)
                waiting.append(child)
    return members


def pss_bytes(pid: int) -> int:
    """The proportional memory of one process; 0 if it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def end_tree(process: subprocess.Popen[str]) -> None:
    """Kill ``process``, which began a session of its own, with all that came of it."""
    for pid in tree(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def main() -> None:
    process = subprocess.Popen(sys.argv[1:], stdout=sys.stderr, start_new_session=True, text=True)
    peak, processes = 0, 0
    try:
        while process.poll() is None:
            sizes = [pss_bytes(pid) for pid in tree(process.pid)]
            if sum(sizes) > peak:
                peak, processes = sum(sizes), sum(size > 0 for size in sizes)
            time.sleep(SAMPLE_SECS)
    finally:
        end_tree(process)
    if process.returncode:
        raise SystemExit(process.returncode)
    print(json.dumps({"peak_pss_mib": peak / 2**20, "processes": processes}))


if __name__ == "__main__":
    main()
