"""``rookery doctor [RECIPE]``: what this machine has, lacks and limits, and what to do about it."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from rookery.cli.arguments import HELP, Words, split_words
from rookery.core.errors import UserError

if TYPE_CHECKING:
    from rookery.doctor.finding import Finding, Wanted
    from rookery.doctor.report import Report

PROG = "rookery doctor"
USAGE = """\
usage: rookery doctor [RECIPE|ENV_ID|module:factory] [--json] [--run DIR]
                      [settings as for `rookery train`, such as --engine local --actors 8]

Checks this machine, and whether it can carry what is given.
The exit code is 1 if something would stop a run.

  --run DIR   where the run would be (default: a new directory in runs)
  --json      pure JSON on standard output"""

NARROW = 60
"""Below this width a table has no room for its columns."""
COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def main(argv: list[str]) -> int:
    """Check, print, and say by the exit code whether runs can work."""
    words = split_words(argv, {"json"})
    if HELP in words.switches:
        print(USAGE)
        return 0
    wanted = _wanted(words)
    from rookery.doctor.report import examine

    with contextlib.redirect_stdout(sys.stderr):  # environments may print
        report = examine(wanted)
    if "json" in words.switches:
        print(json.dumps(report.to_json()))
    elif sys.stdout.isatty():
        _print_table(report)
    else:
        print("\n".join(plain_lines(report)))
    return 1 if report.stops else 0


def _wanted(words: Words) -> Wanted:
    from rookery.doctor.finding import Wanted

    run = words.take("run")
    where = Path(run) if run is not None else Path("runs")
    what = words.one_name(PROG)
    if what is None and "config" not in words.flags:
        if words.flags:
            flag = next(iter(words.flags)).replace("_", "-")
            raise UserError(
                f"--{flag}: settings need a recipe, as in `{PROG} cartpole --{flag} ...`"
            )
        return Wanted(where=where)
    from rookery.programs.memory import estimate
    from rookery.programs.plan import Plan
    from rookery.recipes.settings import settings_from_flags
    from rookery.runs.config import divided

    config, _ = divided(settings_from_flags(what, words.flags))
    try:
        plan = Plan.of(config)
        nodes, needs = plan.program().nodes, estimate(plan)
    except UserError:  # the check of the recipe will say so
        nodes, needs = (), None
    return Wanted(where=where, nodes=nodes, config=config, needs=needs)


def plain_lines(report: Report) -> list[str]:
    """One line for each finding, for pipes."""
    width = max((len(finding.name) for finding in report.findings), default=0)
    lines = [
        f"{finding.level:<8} {finding.name:<{width}}  {_with_remedy(finding)}"
        for finding in report.findings
    ]
    return [*lines, verdict(report)]


def _with_remedy(finding: Finding) -> str:
    return f"{finding.text} -> {finding.remedy}" if finding.remedy else finding.text


def verdict(report: Report) -> str:
    """The last line."""
    problems, warnings = report.count("problem"), report.count("warning")
    if problems:
        return (
            f"{problems} of these would stop a run"
            if problems > 1
            else "One of these would stop a run"
        )
    if warnings:
        return f"Runs will work; {warnings} warning{'s' if warnings > 1 else ''}"
    return "All is well"


def _print_table(report: Report) -> None:
    from rich.console import Console
    from rich.markup import escape

    width, height = shutil.get_terminal_size()
    console = Console(highlight=False, width=width, height=height)
    if console.width < NARROW:
        for line in narrow_lines(report, console.width):
            console.print(escape(line))
    else:
        for group in report.groups:
            console.print(_table(group.name, group.findings))
    console.print()
    console.print(f"[bold]{escape(verdict(report))}[/]")


def _table(title: str, findings: list[Finding]) -> object:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column(width=7, no_wrap=True)
    table.add_column(width=16, overflow="fold")
    table.add_column(overflow="fold")
    for finding in findings:
        text = Text(finding.text)
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        level = Text(finding.level, style=COLOURS[finding.level])
        table.add_row(level, Text(finding.name), text)
    return table


def narrow_lines(report: Report, width: int) -> list[str]:
    """A few lines for each finding, none longer than ``width``."""
    lines = []
    for group in report.groups:
        lines += ["", group.name.upper()]
        for finding in group.findings:
            lines += textwrap.wrap(f"{finding.level}: {finding.name}", width)
            for text in (finding.text, f"-> {finding.remedy}" if finding.remedy else ""):
                lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="  ")
    return lines
