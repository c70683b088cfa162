"""``rookery train WHAT --help``: the settings that matter most, each with the value it has; with
``--help-all``, every setting that applies."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from rookery.algos.algorithm import algorithm_names
from rookery.envs.make import prepared_game
from rookery.formations.settings import formation_names
from rookery.recipes.schema import Schema, as_flag, describe, lookup
from rookery.runs.config import RunConfig

TRAIN_FLAGS = {
    "--run DIR": "Where the run is written; default: runs/<name>-<date>-<id>.",
    "--config FILE": "YAML laid over the recipe, such as a run's config.yaml.",
    "--init-from RUN|FILE": "Start with the weights of another run or of a safetensors file.",
    "--seeds N": "Train N seeds, from --seed on, each a run in one directory; then plot them.",
    "--jobs N": "How many seeds train side by side; default: as many as the cores carry.",
    "--print_config": "Print all settings as YAML and exit.",
    "--plain": "Print progress as plain lines, also on a terminal.",
    "--quiet": "Print nothing but errors.",
    "-h, --help": "Print the settings that matter most, and exit.",
    "--help-all": "Print every setting, and exit.",
}
"""Flags of ``rookery train`` that are not settings."""

ESSENTIAL: dict[str, tuple[str, ...]] = {
    "How long, and on what": (
        "total_steps", "time_limit_secs", "stop_at", "seed", "engine", "device", "env.num_envs",
        "{formation}.num_actors", "{formation}.num_learners",
        "{formation}.num_servers",
    ),
    "What it learns by": (
        "optimizer.lr", "stretch_schedules", "optimizer.max_grad_norm", "{algo}.gamma",
        "{algo}.rollout_steps", "{algo}.num_epochs", "{algo}.num_minibatches", "{algo}.gae_lambda",
        "{algo}.entropy_coef", "{algo}.clip", "{algo}.batch_size", "{algo}.steps_per_update",
        "{algo}.learning_starts", "{algo}.capacity_steps", "{algo}.n_step",
    ),
    "Network": (
        "policy.hidden", "policy.activation", "policy.core", "policy.torso", "policy.normalize_obs",
    ),
    "Environment": (
        "env.kwargs", "env.max_episode_steps", "env.frame_stack", "env.backend",
    ),
    "What is written": (
        "metrics.every_steps", "metrics.every_episodes", "metrics.sinks", "checkpoint.every_steps",
        "eval.every_steps", "eval.episodes",
    ),
}  # fmt: skip
"""The settings that `--help` shows, those of other algorithms and formations left out."""

_INDENT, _COLUMN = 6, 34


def general_help() -> str:
    """What ``rookery train --help`` says before there is anything to train."""
    return "\n".join(
        [
            "usage: rookery train RECIPE|ENV_ID|module:factory [flags]",
            "",
            "  rookery train cartpole                   a recipe (`rookery recipes` lists them)",
            "  rookery train Acrobot-v1 --algo a2c      any gymnasium environment",
            "  rookery train my_package.envs:make_env   a factory of your own",
            "  rookery train --config FILE              a file, such as a run's config.yaml",
            "  rookery train cartpole --help            the settings that matter, and their values",
            "",
            *_flag_lines(),
            "",
            *_wrapped("Often used: " + ", ".join(_often_used()) + "."),
        ]
    )


def settings_help(config: RunConfig, what: str, *, prog: str) -> str:
    """The settings of ``config`` that matter most, a line each."""
    schema, tree = Schema(config.algo, config.formation), config.to_tree()
    lines = [f"usage: {prog} {what} [--flag VALUE ...]", "", *_flag_lines(), ""]
    lines += [f"Settings of {what}, each with its value here:"]
    lines += _line("--algo", config.algo, f"One of {', '.join(algorithm_names())}.")
    lines += _line("--formation", config.formation, f"One of {', '.join(formation_names())}.")
    for group, paths in ESSENTIAL.items():
        lines += ["", f"{group}:"]
        for path in paths:
            path = path.format(algo=schema.block, formation=schema.formation_block)
            if path in schema.kinds:
                about = schema.settings[path].about
                lines += _line(_names(schema, path)[0], _shown(lookup(tree, path)), about)
    return "\n".join([*lines, "", f"{prog} {what} --help-all shows every setting."])


def all_settings_help(config: RunConfig, what: str, *, prog: str) -> str:
    """Every setting that applies to ``config``, section by section."""
    schema = Schema(config.algo, config.formation)
    tree = config.to_tree()
    lines = [f"usage: {prog} {what} [--flag VALUE ...]", "", *_flag_lines()]
    lines += ["", f"Settings of {what}, each with its value here:", *_choice_lines(config)]
    section, is_game = "", prepared_game(config.env) is not None
    for path, setting in schema.settings.items():
        head = path.rpartition(".")[0]
        if head == "env.atari" and not is_game:
            continue
        if head != section:
            section = head
            about = (schema.blocks[head].__doc__ or "").strip().splitlines()[0]
            lines += ["", f"{head}: {about}"]
        lines += _setting_lines(schema, path, lookup(tree, path), setting.about)
    return "\n".join(lines)


def _line(flag: str, value: str, about: str) -> list[str]:
    """A flag with its value, and beside it what it means."""
    left, right = f"  {flag} {value}", _wrapped(about, _COLUMN, least=76)
    if len(left) >= _COLUMN:
        return [left, *right]
    return [f"{left:<{_COLUMN}}{right[0].strip()}", *right[1:]] if right else [left]


def _names(schema: Schema, path: str) -> list[str]:
    """The flags of a setting, the shortest first."""
    short = [as_flag(name) for name, target in schema.short_flags.items() if target == path]
    return [*short, as_flag(path)]


def _often_used() -> list[str]:
    short = [as_flag(name) for name in Schema("ppo", "sync").short_flags]
    top = ("--algo", "--formation", "--engine", "--device", "--seed", "--stop-at", "--name")
    return [*top, "--tags", *short]


def _flag_lines() -> list[str]:
    return [f"  {flag:<22} {about}" for flag, about in TRAIN_FLAGS.items()]


def _choice_lines(config: RunConfig) -> list[str]:
    lines = []
    for name, known in (("algo", algorithm_names()), ("formation", formation_names())):
        lines.append(f"  --{name} {getattr(config, name)}")
        lines += _wrapped(f"One of {', '.join(known)}; decides which settings there are.", _INDENT)
    return lines


def _setting_lines(schema: Schema, path: str, value: Any, about: str) -> list[str]:
    names = ", ".join(_names(schema, path))
    kind = describe(schema.kinds[path])
    choices = f" {kind[0].upper()}{kind[1:]}." if kind.startswith("one of") else ""
    return [f"  {names} {_shown(value)}", *_wrapped(f"{about}{choices}", _INDENT)]


def _shown(value: Any) -> str:
    if value == "":
        return "''"
    if isinstance(value, Mapping) and "until_steps" in value:  # a schedule
        value = {name: entry for name, entry in value.items() if entry}
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()


def _wrapped(text: str, indent: int = 0, least: int = 60) -> list[str]:
    width = max(least, min(shutil.get_terminal_size().columns, 100))
    text = " ".join(text.split())
    return textwrap.wrap(text, width, initial_indent=" " * indent, subsequent_indent=" " * indent)
