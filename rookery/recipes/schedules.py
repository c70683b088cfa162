"""Schedules of a run: those that end long before it does, and stretching them to its length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from rookery.core.schedule import LinearSchedule
from rookery.recipes.catalog import load_recipe, recipe_names
from rookery.runs.config import RunConfig

LATE = 0.9
"""A schedule that goes on for this share of a run is taken to span it."""


def stretched(config: RunConfig) -> RunConfig:
    """``config`` with all schedules slower or faster alike, so that the last ends with the run."""
    ends = [schedule.until_steps for schedule in _schedules(config)]
    if not ends or max(ends) == config.total_steps:
        return config
    found: RunConfig = _stretched(config, config.total_steps / max(ends))
    return found


def note_on_schedules(config: RunConfig) -> str | None:
    """What to say of a learning rate that stays at its end for a long part of the run, where
    neither the recipe nor whoever wrote the schedule meant it so."""
    rate = config.optimizer.lr
    if not isinstance(rate, LinearSchedule) or rate.until_steps >= LATE * config.total_steps:
        return None
    if config.total_steps <= _total_of(config.recipe):
        return None
    return (
        f"the learning rate ends at {rate.at(rate.until_steps):g} after {rate.until_steps:,} of "
        f"{config.total_steps:,} steps and stays there; --stretch-schedules spreads its schedule "
        "over the whole run"
    )


def _total_of(recipe: str) -> int:
    """The steps that a recipe trains for; 0 if it is none."""
    return int(load_recipe(recipe).get("total_steps", 0)) if recipe in recipe_names() else 0


def _schedules(tree: Any) -> Iterator[LinearSchedule]:
    for field in fields(tree):
        value = getattr(tree, field.name)
        if isinstance(value, LinearSchedule):
            yield value
        elif is_dataclass(value):
            yield from _schedules(value)


def _stretched(tree: Any, factor: float) -> Any:
    changed: dict[str, Any] = {}
    for field in fields(tree):
        value = getattr(tree, field.name)
        if isinstance(value, LinearSchedule):
            changed[field.name] = value.stretched(factor)
        elif is_dataclass(value):
            changed[field.name] = _stretched(value, factor)
    return replace(tree, **changed)
