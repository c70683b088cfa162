"""What Slurm says of jobs: asked for all at once, never for long, and missed by nobody."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable

ASK_SECS = 5.0


def states_of(jobs: Iterable[str]) -> dict[str, str]:
    """State, and why it waits, of each of ``jobs`` that Slurm knows: ``pending (Resources)``.

    Empty where there is no Slurm, or none that answers in time.
    """
    wanted = sorted({job for job in jobs if job.isdigit()})
    if not wanted:
        return {}
    listed = ",".join(wanted)
    found = _rows(["squeue", "--noheader", f"--jobs={listed}", "--format=%i|%T|%r"])
    told = {row[0]: _in_words(row[1], row[2]) for row in found if len(row) == 3}
    gone = ",".join(job for job in wanted if job not in told)
    if gone:  # accounting remembers those that have ended
        words = ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={gone}"]
        ended = _rows([*words, "--format=JobID,State"])
        told |= {row[0]: _in_words(row[1]) for row in ended if len(row) == 2}
    return told


def _in_words(state: str, why: str = "None") -> str:
    word = state.partition(" ")[0].lower()  # as in "CANCELLED by 1000"
    return f"{word} ({why})" if word == "pending" and why != "None" else word


def _rows(words: list[str]) -> list[list[str]]:
    """What a command prints, taken apart; nothing if it fails."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=ASK_SECS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.split("|") for line in done.stdout.splitlines() if "|" in line]
