"""All checks, in the order in which they are shown, and none that can end the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rookery.doctor import limits, machine, numerics, parts, recipe, storage, threads
from rookery.doctor.finding import Check, Finding, Wanted, warning

GROUPS: Mapping[str, tuple[Check, ...]] = {
    "software": (parts.python, parts.extras),
    "machine": (
        machine.system,
        machine.cores,
        machine.memory,
        machine.shared_memory,
        limits.open_files,
        limits.processes,
        machine.clock,
    ),
    "compute": (threads.budget, numerics.arithmetic),
    "environments": (parts.environments, parts.display, parts.ffmpeg),
    "storage": (storage.runs, storage.temporary, storage.home),
    "recipe": (recipe.starts,),
}

WORKERS = 6
"""Most checks wait: for a process, for a disk."""


@dataclass(frozen=True, slots=True)
class Group:
    """Findings under one heading."""

    name: str
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found."""

    groups: list[Group]

    @property
    def findings(self) -> list[Finding]:
        """All findings in order."""
        return [finding for group in self.groups for finding in group.findings]

    @property
    def stops(self) -> bool:
        """Whether something would stop a run."""
        return any(finding.level == "problem" for finding in self.findings)

    def count(self, level: str) -> int:
        """How many findings there are of ``level``."""
        return sum(finding.level == level for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "ok": not self.stops,
            "checks": [
                {
                    "group": group.name,
                    "name": finding.name,
                    "level": finding.level,
                    "text": finding.text,
                    "remedy": finding.remedy or None,
                    "data": finding.data,
                }
                for group in self.groups
                for finding in group.findings
            ],
        }


def examine(wanted: Wanted, groups: Mapping[str, Sequence[Check]] = GROUPS) -> Report:
    """Make all checks, several at a time."""
    with ThreadPoolExecutor(WORKERS) as pool:
        begun = {
            name: [pool.submit(answer, check, wanted) for check in checks]
            for name, checks in groups.items()
        }
        found = {
            name: [finding for waiting in answers for finding in waiting.result()]
            for name, answers in begun.items()
        }
    return Report([Group(name, findings) for name, findings in found.items() if findings])


def answer(check: Check, wanted: Wanted) -> list[Finding]:
    """What ``check`` finds; that it failed, if it did."""
    findings: list[Finding] = []
    try:
        findings.extend(check(wanted))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        name = check.__name__.replace("_", " ")
        remedy = "look at it by hand; the rest of this report holds"
        findings.append(warning(name, f"could not be checked ({reason})", remedy))
    return findings
