"""Which runs are compared: found, joined where only the seed differs, and named by what differs.

::

    runs = [read_run(path) for path in find_runs(paths)]
    groups = grouped(runs)
    for label, group in zip(short_labels(groups), groups):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rookery.core.errors import UserError
from rookery.recipes.catalog import parse_yaml
from rookery.runs.directory import RunDirectory
from rookery.runs.find import is_run, no_such_run, runs_inside
from rookery.runs.flat_settings import flat_settings
from rookery.runs.metrics import Record, read_metrics

_SAME_LEARNING = (
    "seed",
    "name",
    "tags",
    "total_steps",
    "time_limit_secs",
    "stop_at",
    "metrics.every_steps",
    "metrics.every_episodes",
    "metrics.sinks",
    "metrics.info_keys",
    "eval.every_steps",
    "eval.episodes",
    "eval.num_envs",
    "checkpoint.",
    "supervise.",
)
"""Settings, and beginnings of settings, that do not change how a run learns."""

_FIRST = ("recipe", "env.id", "algo", "formation", "engine")
_MOST_KEYS = 3
_LONGEST_VALUE = 24


@dataclass(frozen=True, slots=True)
class RunRecords:
    """What a run was and what it wrote down."""

    path: Path
    settings: dict[str, Any] = field(default_factory=dict)
    """Every setting by its path, such as ``optimizer.lr``."""
    records: list[Record] = field(default_factory=list)

    @property
    def seed(self) -> int | None:
        """The seed it was trained with."""
        return self.settings.get("seed")

    @property
    def learning(self) -> dict[str, str]:
        """The settings that decide how it learns, as text."""
        return {
            key: str(value)
            for key, value in self.settings.items()
            if not any(_covers(name, key) for name in _SAME_LEARNING)
        }


def _covers(name: str, key: str) -> bool:
    return key.startswith(name) if name.endswith(".") else key == name


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs that ``paths`` mean, each once: run directories, or directories of runs."""
    found: dict[Path, Path] = {}
    for path in paths:
        here = [path] if is_run(path) else runs_inside(path)
        if not here:
            raise no_such_run(path)
        for run in here:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def read_run(path: Path) -> RunRecords:
    """The settings and records of one run; a run that has not written any has none."""
    run = RunDirectory(path)
    settings: dict[str, Any] = {}
    if run.config_path.is_file():
        try:
            text = run.config_path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {run.config_path} ({error}); check the file") from error
        settings = flat_settings(parse_yaml(text, str(run.config_path)))
    records = read_metrics(run.metrics_path) if run.metrics_path.exists() else []
    return RunRecords(path, settings, [record for record in records if isinstance(record, dict)])


def grouped(runs: Sequence[RunRecords]) -> list[list[RunRecords]]:
    """Runs that learn alike but for their seed, together; in the order of their first run."""
    groups: list[list[RunRecords]] = []
    for run in runs:
        for group in groups:
            if group[0].learning == run.learning:
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def short_labels(groups: Sequence[Sequence[RunRecords]]) -> list[str]:
    """A name for each group: its own, its recipe, or the settings in which the groups differ."""
    firsts = [group[0] for group in groups]
    if len(firsts) == 1:
        return [_name_of(firsts[0])]
    own = [str(run.settings.get("name") or "") for run in firsts]
    if all(own) and len(set(own)) == len(own):
        return own
    keys = _telling_keys(firsts)
    labels = [_label(run, keys) for run in firsts]
    return _told_apart(labels, lambda index: _seed_or_name(firsts[index]))


def seed_labels(runs: Sequence[RunRecords]) -> list[str]:
    """A name for each run when none are joined: what differs, and its seed."""
    groups = grouped(runs)
    names = short_labels(groups) if len(groups) > 1 else [""]
    name_of = {id(run): name for name, group in zip(names, groups, strict=True) for run in group}
    labels = [", ".join(filter(None, (name_of[id(run)], f"seed {run.seed}"))) for run in runs]
    return _told_apart(labels, lambda index: _directory(runs[index]))


def _telling_keys(runs: Sequence[RunRecords]) -> list[str]:
    """The settings that tell ``runs`` apart: all that differ, or enough if they are many."""
    learning = [run.learning for run in runs]
    every = {key for settings in learning for key in settings}
    differ = [key for key in every if len({settings.get(key) for settings in learning}) > 1]
    differ.sort(key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key))
    if len(differ) <= _MOST_KEYS and "recipe" not in differ:
        return differ
    chosen: list[str] = []
    apart = 1
    for key in differ:
        now = len({tuple(settings.get(k) for k in (*chosen, key)) for settings in learning})
        if now > apart:
            chosen.append(key)
            apart = now
    return chosen


def _label(run: RunRecords, keys: Sequence[str]) -> str:
    if not keys:
        return _name_of(run)
    last = [key.rpartition(".")[2] for key in keys]
    parts = []
    for key, word in zip(keys, last, strict=True):
        value = _shown(run.settings.get(key))
        if key in _FIRST:
            parts.append(value)
        else:
            parts.append(f"{word if last.count(word) == 1 else key} {value}")
    return ", ".join(parts)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "none"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list):
        text = "x".join(map(str, value)) or "none"
    if isinstance(value, dict) and "until_steps" in value:
        text = f"{_shown(value.get('start'))} to {_shown(value.get('end'))}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _name_of(run: RunRecords) -> str:
    settings = run.settings
    name = settings.get("name") or settings.get("recipe") or settings.get("env.id")
    return _shown(name) if name else _directory(run)


def _directory(run: RunRecords) -> str:
    """The end of its directory's name, where date and id are."""
    name = run.path.resolve().name
    return name if len(name) <= _LONGEST_VALUE else f"…{name[1 - _LONGEST_VALUE :]}"


def _seed_or_name(run: RunRecords) -> str:
    return _directory(run) if run.seed is None else f"seed {run.seed}"


def _told_apart(labels: list[str], more: Callable[[int], str]) -> list[str]:
    """``labels``, those that occur twice with something more to them."""
    told = [
        f"{label} ({more(index)})" if labels.count(label) > 1 else label
        for index, label in enumerate(labels)
    ]
    return [
        f"{label} {told[:index].count(label) + 1}" if told.count(label) > 1 else label
        for index, label in enumerate(told)
    ]
