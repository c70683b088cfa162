"""``rookery train WHAT --help``: every setting that applies, with the value it has."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

import yaml

from rookery.algos.algorithm import algorithm_names
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
    "-h, --help": "Print this and exit.",
}
"""Flags of ``rookery train`` that are not settings."""

_INDENT = 6


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
            "  rookery train cartpole --help            every setting that applies, and its value",
            "",
            *_flag_lines(),
            "",
            *_wrapped("Often used: " + ", ".join(_often_used()) + "."),
        ]
    )


def settings_help(config: RunConfig, what: str, *, prog: str) -> str:
    """Every setting that applies to ``config``, section by section."""
    schema = Schema(config.algo, config.formation)
    tree = config.to_tree()
    lines = [f"usage: {prog} {what} [--flag VALUE ...]", "", *_flag_lines()]
    lines += ["", f"Settings of {what}, each with its value here:", *_choice_lines(config)]
    section = ""
    for path, setting in schema.settings.items():
        head = path.rpartition(".")[0]
        if head != section:
            section = head
            about = (schema.blocks[head].__doc__ or "").strip().splitlines()[0]
            lines += ["", f"{head}: {about}"]
        lines += _setting_lines(schema, path, lookup(tree, path), setting.about)
    return "\n".join(lines)


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
    short = [as_flag(name) for name, target in schema.short_flags.items() if target == path]
    names = ", ".join([*short, as_flag(path)])
    kind = describe(schema.kinds[path])
    choices = f" {kind[0].upper()}{kind[1:]}." if kind.startswith("one of") else ""
    return [f"  {names} {_shown(value)}", *_wrapped(f"{about}{choices}", _INDENT)]


def _shown(value: Any) -> str:
    if value == "":
        return "''"
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()


def _wrapped(text: str, indent: int = 0) -> list[str]:
    width = max(60, min(shutil.get_terminal_size().columns, 100))
    text = " ".join(text.split())
    return textwrap.wrap(text, width, initial_indent=" " * indent, subsequent_indent=" " * indent)
